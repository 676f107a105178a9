//! CRC-32C (Castagnoli) as the EROFS superblock wants it: seeded with all ones, without the final inversion.
//!
//! It covers 3 KiB an image, so a plain byte table does; nothing else in this crate is checksummed.

const POLYNOMIAL: u32 = 0x82F6_3B78;

const TABLE: [u32; 256] = {
    let mut table = [0_u32; 256];
    let mut index = 0_u32;
    while index < 256 {
        let mut crc = index;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        table[index as usize] = crc;
        index += 1;
    }
    table
};

/// The checksum of `parts`, one after the other.
pub(crate) fn crc32c(parts: &[&[u8]]) -> u32 {
    let bytes = parts.iter().flat_map(|part| part.iter());
    bytes.fold(u32::MAX, |crc, byte| {
        let index = (crc.to_le_bytes()[0] ^ byte) as usize;
        TABLE.get(index).copied().unwrap_or_default() ^ (crc >> 8)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_value_of_the_polynomial() {
        // The catalogue's check value is over "123456789", with the final inversion.
        assert_eq!(!crc32c(&[b"1234", b"56789"]), 0xE306_9283);
    }
}

//! A tar archive made by hand, member by member: what no sound program writes.

/// See the [module](self).
#[derive(Debug, Clone, Default)]
pub(crate) struct Archive(Vec<u8>);

impl Archive {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// A member with a plain header; `edit` may change the header before its checksum is made.
    pub(crate) fn member(
        mut self,
        kind: u8,
        name: &str,
        link: &str,
        data: &[u8],
        edit: impl Fn(&mut [u8; 512]),
    ) -> Self {
        let mut header = [0; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[100..107].copy_from_slice(b"0000644");
        header[108..115].copy_from_slice(b"0000000");
        header[116..123].copy_from_slice(b"0000000");
        header[124..135].copy_from_slice(format!("{:011o}", data.len()).as_bytes());
        header[136..147].copy_from_slice(b"00000000001");
        header[156] = kind;
        header[157..157 + link.len()].copy_from_slice(link.as_bytes());
        header[257..265].copy_from_slice(b"ustar\x0000");
        header[329..336].copy_from_slice(b"0000000");
        header[337..344].copy_from_slice(b"0000000");
        edit(&mut header);
        header[148..156].copy_from_slice(b"        ");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.extend_from_slice(&header);
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub(crate) fn file(self, name: &str, data: &[u8]) -> Self {
        self.member(b'0', name, "", data, |_| {})
    }

    pub(crate) fn directory(self, name: &str) -> Self {
        self.member(b'5', name, "", b"", |_| {})
    }

    pub(crate) fn symlink(self, name: &str, target: &str) -> Self {
        self.member(b'2', name, target, b"", |_| {})
    }

    pub(crate) fn link(self, name: &str, target: &str) -> Self {
        self.member(b'1', name, target, b"", |_| {})
    }

    /// An extended header for the next member.
    pub(crate) fn pax(self, records: &[(&str, &[u8])]) -> Self {
        let mut data = Vec::new();
        for (key, value) in records {
            let rest = [b" ", key.as_bytes(), b"=", value, b"\n"].concat();
            let length = (1..).find(|length: &usize| length.to_string().len() + rest.len() == *length).unwrap();
            data.extend_from_slice(length.to_string().as_bytes());
            data.extend_from_slice(&rest);
        }
        self.member(b'x', "PaxHeaders/next", "", &data, |_| {})
    }

    /// Without the end marker.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.0.clone()
    }

    pub(crate) fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }
}

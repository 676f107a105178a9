//! Images of whole trees: against `fsck.erofs`, the kernel, our own reader, and damage.

mod fsck;
mod mount;
mod round_trip;
mod sample;

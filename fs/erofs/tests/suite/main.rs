//! Images of whole trees: against `fsck.erofs`, the kernel, our own reader, and damage.

mod damage;
mod document;
mod frozen;
mod fsck;
mod hostile;
mod mount;
mod round_trip;
mod sample;

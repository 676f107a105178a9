//! Pure types and codecs of the dsec formats: digest, chunk, pack, layer, image, environment. No I/O, no async.

//! EROFS metadata images: writer, and a reader over mapped memory.

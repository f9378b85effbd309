// The C++ library asks this flag of glibc 2.32 whether the process has one thread only, where it
// counts references. With a flag of its own, which says no, the library needs no glibc of 2.32.
extern "C" {
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;
}

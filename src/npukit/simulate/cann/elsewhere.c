/* A library that torch_npu asks for functions which are in another one here: that one is linked, and dlsym finds them. */
typedef int npusim_nothing_here;

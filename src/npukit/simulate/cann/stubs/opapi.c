/* libopapi.so: the compiled operators. torch_npu asks whether some are there, such as its silent check; none is. */
typedef int npusim_nothing_here;

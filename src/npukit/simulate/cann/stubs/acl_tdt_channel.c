/* libacl_tdt_channel.so: torch_npu names it as a library it needs and uses nothing of it that is simulated. */
typedef int npusim_nothing_here;

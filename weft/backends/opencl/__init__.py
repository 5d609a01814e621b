"""Any device with an OpenCL driver, through pyopencl: OpenCL C from the loops."""

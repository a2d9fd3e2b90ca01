/* comm/mpi_none.c - stands in for mpi.c and shm.c where the library is built without MPI. */
#include "comm/comm_internal.h"

#include <stdlib.h>

/* N copies of one rank would be worse than an error. */
bool dti_mpi_launched(void)
{
    const char *size = getenv("OMPI_COMM_WORLD_SIZE");
    if (!size)
        size = getenv("PMI_SIZE");
    return size && strtol(size, NULL, 10) > 1;
}

dt_status dti_mpi_open(dt_world *world)
{
    (void)world;
    return DT_ERROR(DT_ERR_UNSUPPORTED, "this library was built without MPI");
}

dt_status dti_shm_open(dt_world *world, int machines)
{
    (void)machines;
    return dti_mpi_open(world);
}

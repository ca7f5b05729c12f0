// Loaded before MPI: what the rank FAULTY_RANK sends as its FAULTY_SEND-th message arrives with one bit changed.
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
  static int sent = 0;
  int rank = 0, size = 0;
  PMPI_Comm_rank(comm, &rank);
  PMPI_Type_size(type, &size);
  if (rank == atoi(getenv("FAULTY_RANK")) && ++sent == atoi(getenv("FAULTY_SEND")) && count > 0) {
    char* copy = malloc((size_t)count * (size_t)size);  // given up with the process
    memcpy(copy, data, (size_t)count * (size_t)size);
    copy[2] ^= 1;
    data = copy;
  }
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}

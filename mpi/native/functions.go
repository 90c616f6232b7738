package native

import (
	"fmt"
	"strings"
)

// functions are the addresses of the calls we make.
type functions struct {
	initThread, finalize, abort, initialized, finalized uintptr
	errorClass, errorString                             uintptr

	commRank, commSize, commSetErrhandler, commGetAttr uintptr
	commIdup, commFree, commCreateGroup                uintptr
	commGroup, groupIncl, groupFree                    uintptr

	isend, irecv, test, cancel, testCancelled, requestFree uintptr
	iprobe                                                 uintptr
	getCount, getElementsX, statusSetElementsX             uintptr
	typeHindexed, typeCommit, typeFree                     uintptr

	ibarrier, ibcast, ireduce, iallreduce, iallgather, iallgatherv uintptr
	igather, igatherv, iscatter, iscatterv, ialltoall, ialltoallv  uintptr
	ireduceScatter, ireduceScatterBlock, iscan, iexscan            uintptr

	// Large-count forms of MPI 4; 0 where the library lacks them.
	isendC, irecvC uintptr
}

// resolve looks all functions up; all but the large-count ones must be there, since
// every MPI 3.0 library has them.
func resolve(sym func(string) uintptr) (functions, error) {
	var f functions
	required := []struct {
		at   *uintptr
		name string
	}{
		{&f.initThread, "MPI_Init_thread"}, {&f.finalize, "MPI_Finalize"}, {&f.abort, "MPI_Abort"},
		{&f.initialized, "MPI_Initialized"}, {&f.finalized, "MPI_Finalized"},
		{&f.errorClass, "MPI_Error_class"}, {&f.errorString, "MPI_Error_string"},
		{&f.commRank, "MPI_Comm_rank"}, {&f.commSize, "MPI_Comm_size"},
		{&f.commSetErrhandler, "MPI_Comm_set_errhandler"}, {&f.commGetAttr, "MPI_Comm_get_attr"},
		{&f.commIdup, "MPI_Comm_idup"}, {&f.commFree, "MPI_Comm_free"},
		{&f.commCreateGroup, "MPI_Comm_create_group"}, {&f.commGroup, "MPI_Comm_group"},
		{&f.groupIncl, "MPI_Group_incl"}, {&f.groupFree, "MPI_Group_free"},
		{&f.isend, "MPI_Isend"}, {&f.irecv, "MPI_Irecv"}, {&f.test, "MPI_Test"},
		{&f.cancel, "MPI_Cancel"}, {&f.testCancelled, "MPI_Test_cancelled"}, {&f.requestFree, "MPI_Request_free"},
		{&f.iprobe, "MPI_Iprobe"},
		{&f.getCount, "MPI_Get_count"}, {&f.getElementsX, "MPI_Get_elements_x"}, {&f.statusSetElementsX, "MPI_Status_set_elements_x"},
		{&f.typeHindexed, "MPI_Type_create_hindexed"}, {&f.typeCommit, "MPI_Type_commit"}, {&f.typeFree, "MPI_Type_free"},
		{&f.ibarrier, "MPI_Ibarrier"}, {&f.ibcast, "MPI_Ibcast"}, {&f.ireduce, "MPI_Ireduce"}, {&f.iallreduce, "MPI_Iallreduce"},
		{&f.iallgather, "MPI_Iallgather"}, {&f.iallgatherv, "MPI_Iallgatherv"},
		{&f.igather, "MPI_Igather"}, {&f.igatherv, "MPI_Igatherv"}, {&f.iscatter, "MPI_Iscatter"}, {&f.iscatterv, "MPI_Iscatterv"},
		{&f.ialltoall, "MPI_Ialltoall"}, {&f.ialltoallv, "MPI_Ialltoallv"},
		{&f.ireduceScatter, "MPI_Ireduce_scatter"}, {&f.ireduceScatterBlock, "MPI_Ireduce_scatter_block"},
		{&f.iscan, "MPI_Iscan"}, {&f.iexscan, "MPI_Iexscan"},
	}
	var missing []string
	for _, r := range required {
		if *r.at = sym(r.name); *r.at == 0 {
			missing = append(missing, r.name)
		}
	}
	if len(missing) > 0 {
		return f, fmt.Errorf("%w: it lacks %s (MPI 3.0 is the least)", ErrUnknownLibrary, strings.Join(missing, ", "))
	}
	f.isendC, f.irecvC = sym("MPI_Isend_c"), sym("MPI_Irecv_c")
	if f.isendC == 0 || f.irecvC == 0 {
		f.isendC, f.irecvC = 0, 0
	}
	return f, nil
}

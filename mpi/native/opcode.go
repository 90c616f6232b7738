package native

// The operations that a Request can be.

type opcode uint8

const (
	opIsend opcode = iota
	opIrecv
	opProbe
	opIdup
	opIbarrier
	opIbcast
	opIreduce
	opIallreduce
	opIallgather
	opIallgatherv
	opIgather
	opIgatherv
	opIscatter
	opIscatterv
	opIalltoall
	opIalltoallv
	opIreduceScatter
	opIreduceScatterBlock
	opIscan
	opIexscan
)

var opcodeNames = [...]string{"Isend", "Irecv", "Probe", "Idup", "Ibarrier", "Ibcast",
	"Ireduce", "Iallreduce", "Iallgather", "Iallgatherv", "Igather", "Igatherv", "Iscatter", "Iscatterv", "Ialltoall",
	"Ialltoallv", "Ireduce_scatter", "Ireduce_scatter_block", "Iscan", "Iexscan"}

func (o opcode) String() string { return opcodeNames[o] }

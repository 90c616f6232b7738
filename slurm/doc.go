// Package slurm reads what Slurm tells a task and turns it into the places and
// roles of a distributed program: host lists, tasks per node, the task's own
// place in the step, reserved ports, and the cluster description (who is a
// parameter server, who is a worker, at which address) that follows from them.
//
// Everything here is a pure function of its arguments: the environment comes in
// through a lookup function, addresses through a function host -> address, and
// nothing is read from or written to the machine. Slurm's own order of nodes is
// kept throughout; nothing is ever sorted, because SLURM_NODEID counts in that
// order.
//
// The rules for places and roles are those of tf4slurm (CESGA, 2018): a task's
// position is (node index, local id) counted node by node, and the role list is
// indexed by that position, not by the rank.
package slurm

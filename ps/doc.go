// Package ps is a parameter server over package mpi: tables of numbers, cut
// over servers that apply gradients to them, and workers that push gradients
// and pull values.
//
//	cluster := ps.Counts(1, 3) // rank 0 serves, ranks 1 to 3 work
//	cfg := ps.Config{Comm: world.Comm(), Cluster: cluster, Mode: ps.Sync,
//		Tables: []ps.Table{{Name: "w", Len: n, Type: ps.Float32}}, Rule: ps.Rule{Rate: 0.1}}
//	if world.Rank() == 0 {
//		server, err := ps.NewServer(cfg)
//		...
//		_, err = server.Serve(ctx)
//		return err
//	}
//	w, err := ps.NewWorker(cfg)
//	...
//	if w.Chief() {
//		_, err = ps.Set(ctx, w, "w", 0, values, 0).Wait(ctx)
//	}
//	_, err = ps.Pull(ctx, w, "w", values).Wait(ctx)
//	for !stop.Reached(0, w.GlobalStep()) {
//		... // grad from values
//		_, err = ps.PushPull(ctx, w, "w", grad, values, ps.Contribution{CountStep: true}).Wait(ctx)
//	}
//	lost, err := w.Finish(ctx, 0, 0)
//
// # The life of a push
//
// shard.go cuts a table into blocks and deals them to the servers. worker.go checks a push, and future.go
// sends a frame (frame.go) for each block; a payload above 16 KiB is a message of its
// own, straight from the caller's memory. On the server server.go receives the
// frame, and server_gradient.go asks store.go whether there is room and policy.go whether the gradient may enter;
// only then is the payload's receive posted: until there is room it stays with the worker.
// optimizer.go applies it in place. reply.go answers, and server_pull.go those who waited for a later version, with the values straight
// from the table: an update that comes while they are on their way goes to a copy. future.go takes the answer in.
// ARCHITECTURE.md has the road call by call.
//
// # Consistency
//
// Async applies each gradient when it arrives. Sync gathers one gradient of
// each worker for every step, adds them in the order of the workers' indices, whatever order
// they come in, and applies the sum: the result is the same bit by bit in every run, for
// any number of servers. With Config.Aggregate below the number of workers the fastest make a
// step and the gradients of the others are dropped; they go on with values of one version, for which
// they may have to pull again.
//
// # The end
//
// Each worker says DONE(rank, status, epoch) to every server, which keeps them
// in a bitmap (done.go). When ps 0 has heard from all workers, or of their loss, and from all
// other servers that they have too, it tells everybody who is lost; then all pass one
// barrier over the whole communicator, or over what is left of it, so that nobody
// closes while another still talks. A worker that is lost ends the run for all in Sync
// mode: its servers tell each worker who asks, by name, and revoke the communicator. In Async mode the others
// go on. A lost server ends the run in both.
package ps

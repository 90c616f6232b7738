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
// shard.go cuts a table into blocks and deals them to the servers. worker.go checks a push, and future.go sends a
// frame (frame.go) for each block; a payload above 16 KiB is a message of its own, straight from the caller's
// memory. On the server, server.go receives the frame, and server_gradient.go asks store.go whether there is room
// and policy.go whether the gradient may enter. Only then does it post the receive of the payload: until there is
// room the payload stays with the worker. optimizer.go applies the gradient in place. reply.go answers the push,
// and server_pull.go the requests that waited for a later version. Values are sent straight from the table: an
// update that comes while they are on their way goes to a copy. future.go takes the answer in. ARCHITECTURE.md
// follows the same way call by call.
//
// # Consistency
//
// Async applies each gradient when it arrives. Sync gathers one gradient of each worker for every step, adds them
// in the order of the workers' indices, whatever order they come in, and applies the sum: the result is the same
// bit by bit in every run, for any number of servers. With Config.Aggregate below the number of workers, the
// fastest workers make a step and the gradients of the others are dropped. The others go on with the new values,
// all of one version; to get them they may have to pull again.
//
// # The end
//
// Each worker says DONE(rank, status, epoch) to every server, which records it in a bitmap (done.go). When ps 0
// knows of each worker that it is done or lost, and has heard from all other servers that they know it too, it
// tells everybody which ranks are lost. Then all ranks, or those that are left, pass one barrier, so that nobody
// closes while another still talks. In Sync mode a lost worker ends the run for all: the servers tell each worker
// that asks which rank was lost, and then revoke the communicator. In Async mode the others go on. A lost server
// ends the run in both modes.
package ps

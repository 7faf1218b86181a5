// Package replica shares the requests under way between routers in front of the same workers. Each router tells its
// peers of every request that it places, of the end of its prefill, and of its end. A peer takes the request as its
// own: the load counts at the worker, and the prompt is expected in the worker's cache. The transport is NATS: a given
// server, or a server inside of this process.
//
// Load is advice, so nothing waits. The request path only writes a record into memory. Messages may be lost: every
// packet has a digest of all requests under way at its sender. A router whose own digest of the sender differs asks the
// sender for all of them. A router that is silent for deadAfter counts as dead, and its load is dropped.
//
// The package knows messages and NATS. It does not know how load and caches are kept: that is warmpath.Peer.
//
//	s := replica.New(cfg, replica.Parts{NewPeer: router.NewPeer, Fleet: fleet, Log: log})
//	options.Observer = s.Observer()
//	err := s.Run(ctx)
package replica

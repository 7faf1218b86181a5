// Package indexer makes the index of a router a service: other programs ask over HTTP or gRPC which worker has how much
// of a prompt in its KV cache. It also has the client by which a router uses such a service in place of an index of its
// own.
//
//	service := indexer.New(config, indexer.Parts{Router: router, Fleet: fleet, …})
//	err := service.Serve(ctx, front, rpc) // answers until ctx ends
//
// A [Service] answers from a [warmpath.Router], whose events the caller follows (kvfeed). Workers come from discovery,
// or programs register them: with the endpoint of their events, as at the standalone indexer of NVIDIA Dynamo and at
// Mooncake's conductor (Mooncake issue #1403). A registered worker is put into the fleet, and is asked nothing.
//
// A [Client] is a remote index of the gateway (gateway.RemoteIndex). It registers the gateway's workers at the service,
// asks about each prompt, and tells the fleet how far the answers can be believed. While the service does not answer,
// that is not at all.
//
// The package knows the wire: indexer.proto has the messages, which proto.go encodes by hand. It refuses to know how
// matches are computed, and which worker a request should go to.
package indexer

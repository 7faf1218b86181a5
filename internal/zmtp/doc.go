// Package zmtp implements the parts of the ZeroMQ wire protocol that KV events need: ZMTP 3.0 and 3.1 with the NULL
// mechanism, and SUB, PUB, DEALER and ROUTER sockets over tcp:// and ipc://, which dial or bind.
//
// A socket reports when a connection comes up and goes down, because a subscriber must know that it may have missed
// messages. A socket also bounds the memory that a peer can make the socket use. The package does not know what
// messages mean. It does not support CURVE, PLAIN, ZMTP 1 and 2, and other socket types.
//
//	s, err := zmtp.New(zmtp.SUB, "tcp://10.0.0.7:5557", zmtp.Config{
//		Topics: []string{""},
//		OnMessage: func(p *zmtp.Peer, parts [][]byte) { … }, // parts are valid only here
//	})
//	err = s.Run(ctx)
//
// Specification: https://rfc.zeromq.org/spec/23/ (3.0) and https://rfc.zeromq.org/spec/37/ (3.1).
package zmtp

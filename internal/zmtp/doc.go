// Package zmtp speaks the ZeroMQ wire protocol ZMTP 3.0 and 3.1 with the NULL mechanism, as far as KV events need it:
// SUB, PUB, DEALER and ROUTER sockets over tcp:// and ipc://, each of which may dial or bind.
//
// Unlike libzmq it tells when a connection came up and went down (a subscriber must know that it may have missed
// something), and it bounds what a peer can make it hold. It refuses to know what messages mean. CURVE, PLAIN, ZMTP 1 and 2
// and the other socket types are not supported.
//
//	s, err := zmtp.New(zmtp.SUB, "tcp://10.0.0.7:5557", zmtp.Config{
//		Topics: []string{""},
//		OnMessage: func(p *zmtp.Peer, parts [][]byte) { … }, // parts are valid only here
//	})
//	err = s.Run(ctx)
//
// Specification: https://rfc.zeromq.org/spec/23/ (3.0) and https://rfc.zeromq.org/spec/37/ (3.1).
package zmtp

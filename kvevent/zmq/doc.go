// Package zmq carries KV events between engines and the router over ZeroMQ: a Subscriber that makes one engine's stream
// gap-free (or says what is missing), a Listener that many engines connect to, and a Publisher that behaves as vLLM's
// does.
//
// It knows the frames (topic, sequence number, payload), the replay socket, and how sequence numbers tell a gap from a
// restart. It refuses to know what a payload means: that is package kvevent's.
//
//	s := zmq.NewSubscriber(zmq.Source{Endpoint: "tcp://10.0.0.7:5557", Replay: "tcp://10.0.0.7:5657"}, zmq.DefaultConfig, handler)
//	err := s.Run(ctx)
//
// Sources: vLLM `vllm/distributed/kv_events.py` (ZmqEventPublisher), SGLang `srt/disaggregation/kv_events.py`.
package zmq

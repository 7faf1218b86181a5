// Package zmq carries KV events between engines and the router over ZeroMQ. A Subscriber follows one engine: it makes
// the stream gap-free, or reports what is missing. Many engines can connect to one Listener. A Publisher behaves as
// vLLM's does.
//
// The package knows the frames (topic, sequence number, payload), the replay socket, and how sequence numbers
// distinguish a gap from a restart. It does not know what a payload means; package kvevent does.
//
//	s := zmq.NewSubscriber(zmq.Source{Endpoint: "tcp://10.0.0.7:5557", Replay: "tcp://10.0.0.7:5657"}, zmq.DefaultConfig, handler)
//	err := s.Run(ctx)
//
// Sources: vLLM `vllm/distributed/kv_events.py` (ZmqEventPublisher), SGLang `srt/disaggregation/kv_events.py`.
package zmq

// Package publish sends the KV cache events of an engine of one's own to a router. [KVPublisher] numbers the messages,
// keeps the last of them for replay, and speaks the wire format of vLLM 0.33: three ZeroMQ frames (the topic, an 8-byte
// big-endian number, and a MessagePack batch), and the replay protocol of vLLM's ZmqEventPublisher
// (vllm/distributed/kv_events.py).
//
// The package does not know what an engine caches: the engine calls it for each block that it stores or removes. Nor
// does it know who reads the events.
//
//	p := publish.New(publish.Config{Endpoint: "tcp://*:5557", Replay: "tcp://*:5657", BlockSize: 16})
//	go p.Run(ctx)
//	seq, err := p.PublishStored(publish.Stored{TokenIDs: tokens, BlockHashes: hashes})
//	seq, err = p.PublishRemoved(publish.Removed{BlockHashes: hashes[:1]})
//
// The same library exists for Python (folder python) and C (folder c). All three write the same bytes for the same
// events: testdata/vectors.json has the cases. README.md shows how to use and how to release each of them.
package publish

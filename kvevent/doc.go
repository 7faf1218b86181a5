// Package kvevent decodes the KV cache events of inference engines.
//
// It knows the payloads of vLLM, SGLang, TensorRT-LLM, LMCache and Mooncake in every version of their formats, and
// turns each payload into a [Batch] of events: blocks stored, blocks removed, everything cleared. It also reports the
// keys that a format has no field for ([Event.Hidden]), and the keys that it cannot read ([Event.Unread]), so that an
// index can refuse a block instead of guessing. [Wire] writes the same payloads, for mock engines and publishers.
//
// It does not know sockets and sequence numbers (package kvfeed), Warmpath's block keys (package block), the index
// (package kvindex), or which engine a worker runs: it recognizes every format by its bytes alone.
//
//	var d kvevent.Decoder
//	var b kvevent.Batch
//	if err := d.Decode(payload, &b); err != nil {
//		// The message cannot be read: treat it as lost, because it may have removed blocks.
//	}
//	for more := true; more; more = d.Next(&b) { // a long message comes in several batches
//		for i := range b.Events { … }
//		if b.Incomplete { … } // an event that removes blocks could not be read: forget the holder
//	}
//
// A hostile payload costs time in proportion to its length and a bounded amount of memory, and causes no panic. In
// steady state decoding allocates nothing.
package kvevent

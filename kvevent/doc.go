// Package kvevent decodes the KV cache events of inference engines.
//
// It knows the payloads of vLLM, SGLang, TensorRT-LLM, LMCache and Mooncake in every version of their formats. It turns
// each payload into a [Batch] of events: blocks were stored, blocks were removed, or everything was cleared. [Wire]
// writes the same payloads, for mock engines and publishers.
//
// A block's identity is its tokens and perhaps extra keys, such as an adapter, a cache_salt or an image (see [Keys]).
// An event says for which extra keys its format has no field ([Event.Hidden]), and which it has in a form that cannot
// be read ([Event.Unread]). So an index can refuse a block instead of guessing.
//
// It does not know sockets and sequence numbers (package kvfeed), Warmpath's block keys (package block), or the index
// (package kvindex). It also does not need to know which engine a worker runs: the bytes alone show the format.
//
//	var d kvevent.Decoder
//	var b kvevent.Batch
//	if err := d.Decode(payload, &b); err != nil {
//		// The message cannot be read: treat it as lost, because it may have removed blocks.
//	}
//	for more := true; more; more = d.Next(&b) { // a long message comes in several batches
//		for i := range b.Events { … }
//		if b.Incomplete { … } // an event that removes blocks could not be read: apply the batch, then forget the engine's blocks
//	}
//
// A hostile payload takes time in proportion to its length, and a bounded amount of memory. It causes no panic. After
// the first messages decoding allocates nothing.
package kvevent

// Package kvevent decodes the KV cache events of inference engines.
//
// The package reads the events of vLLM, SGLang, TensorRT-LLM and LMCache in every version of their formats. Each
// payload becomes a [Batch] of events: blocks were stored, blocks were removed, or everything was cleared. Events of
// Mooncake's master have no tokens: the decoder recognizes, counts and skips them. [Wire] writes payloads of vLLM,
// SGLang and TensorRT-LLM, for mock engines and publishers.
//
// A block is identified by its tokens, by the tokens before it, and perhaps by extra keys, such as an adapter, a
// cache_salt or an image (see [Keys]). [Event.Hidden] has the extra keys for which the event's format has no field.
// [Event.Unread] has the extra keys that are in the event, but in a form that cannot be read. So an index can refuse a
// block instead of guessing its identity.
//
// The package does not know sockets and sequence numbers (package kvfeed), Warmpath's block keys (package block), or
// the index (package kvindex). It also does not need to know which engine a worker runs: the bytes of a payload show
// the format.
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
// Decoding a hostile payload takes time in proportion to its length, takes a bounded amount of memory, and causes no
// panic. After the first messages, decoding messages of usual size allocates nothing.
package kvevent

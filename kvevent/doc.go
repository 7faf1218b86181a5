// Package kvevent reads what inference engines say about their KV caches.
//
// It knows the payloads that vLLM, SGLang, TensorRT-LLM, LMCache and Mooncake publish, in every form they had since
// they began, and turns each into one [Batch] of events: blocks stored, removed, all cleared. It also knows what each
// form cannot say ([Event.Hidden]) and what it said in a way nobody can place ([Event.Unread]), so that the index can
// refuse to claim a block rather than guess. [Sequence] tells a gap from a duplicate from an engine that began anew.
// [Wire] writes the same payloads, for mock engines and publishers.
//
// It refuses to know sockets (package kvevent/zmq), our own block keys (package block), where events are kept
// (package kvindex) and which engine a worker runs: every shape is told from its bytes alone.
//
//	var d kvevent.Decoder
//	var b kvevent.Batch
//	if err := d.Decode(payload, &b); err != nil {
//		// The message is unreadable: treat it as lost, because it may have removed blocks.
//	}
//	for more := true; more; more = d.Next(&b) { // a long message comes in several batches
//		for i := range b.Events { … }
//		if b.Incomplete { … } // an event that takes blocks away was unreadable: forget the holder
//	}
//
// Hostile payloads cost time in proportion to their length, a bounded amount of memory, and never panic. In steady
// state decoding allocates nothing.
package kvevent

// Package kvfeed keeps the index true. It follows one ordered stream of KV events for each holder, applies it through
// the Router, and sets the trust of the holder: how far its entries in the index can be believed, and why.
//
// It knows what gaps of a stream and missing fields of an event mean for the claims. It does not know the wire (kvevent
// and kvevent/zmq do), where workers come from (discovery does) and how requests are routed.
//
//	feed := kvfeed.New(router, kvfeed.Config{}, logger)
//	err := feed.Run(ctx)
//
// Two rules decide everything here. First, the index may know too little, which costs time, but never claim too much:
// an event that could belong to another request than it seems to is not applied. Second, trust is never better than the
// worst thing that happened since the holder's cache was last known to be empty.
package kvfeed

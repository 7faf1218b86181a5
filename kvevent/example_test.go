package kvevent_test

import (
	"encoding/hex"
	"fmt"

	"github.com/warmpath/warmpath/kvevent"
)

// samplePayload is a message of vLLM 0.32 with one block of four tokens. vLLM's msgspec encoder wrote these bytes.
const samplePayload = "93cb41da415360080000918ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cfdab89baa7b5857c0" +
	"b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f6964739464656667aa626c6f636b5f73697a6504a76c6f72615f6964c0a6" +
	"6d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b6579739191a874656e616e742d61a967726f75705f69647800b26b76" +
	"5f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6e00"

func ExampleDecoder() {
	payload, _ := hex.DecodeString(samplePayload)
	var d kvevent.Decoder
	var b kvevent.Batch
	if err := d.Decode(payload, &b); err != nil {
		fmt.Println(err)
		return
	}
	for i := range b.Events {
		e := &b.Events[i]
		fmt.Printf("%s on %s: %d block of tokens %v, salt %q, indexable %v\n",
			e.Kind, e.Tier, len(e.Hashes), e.Tokens, e.Salt, e.Indexable(kvevent.KeyRoot))
	}
	// Output:
	// stored on gpu: 1 block of tokens [100 101 102 103], salt "tenant-a", indexable true
}

func ExampleWire_Append() {
	w, err := kvevent.ParseWire("vllm-0.22")
	if err != nil {
		fmt.Println(err)
		return
	}
	payload := w.Append(nil, &kvevent.Batch{Time: 1761955200.125, HasRank: true, Events: []kvevent.Event{
		{Kind: kvevent.Removed, Hashes: []kvevent.Hash{7}, Medium: "GPU", Group: 0},
	}})
	fmt.Printf("%x\n", payload)
	// Output:
	// 93cb41da4153600800009194ac426c6f636b52656d6f7665649107a34750550000
}

package fleet_test

import (
	"fmt"

	"github.com/warmpath/warmpath/fleet"
)

func Example() {
	f := fleet.New(fleet.Config{})
	id := f.Put("http://10.0.0.7:8000", fleet.Facts{Models: []fleet.Model{{ID: "llama"}}, BlockSize: 16})

	pool, _ := f.Snapshot().Pool("llama")
	var request fleet.Reservation
	f.Reserve(&request, pool.Holders[0], fleet.Work{UncachedTokens: 900, ContextBlocks: 63}, 0)
	fmt.Printf("%+v\n", f.Snapshot().Load(pool.Holders[0]))
	request.FirstToken()
	request.Release()

	f.SetHealth(id, false, "connection refused")
	w := f.Snapshot().Worker(pool.Holders[0])
	fmt.Println(w.URL, w.Ready, w.Why)
	// Output:
	// {Requests:1 PrefillTokens:900 ContextBlocks:63 Processed:1 OutputTokens:0 Reported:{At:0 Running:0 Waiting:0 KVUsed:0}}
	// http://10.0.0.7:8000 false connection refused
}

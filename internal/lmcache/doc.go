// Package lmcache asks the HTTP controller of an LMCache deployment (lmcache_controller, 0.5) which tokens its workers
// have cached. It does so for the policy lmcache_aware, which itself does no I/O.
//
//	client := lmcache.New(parameters, fleet, nil, log)
//	go client.Run(ctx)                   // polls
//	spec.Source = client.Cached          // of the policy
//
// It never fails a request and never holds one for long: a lookup takes at most 200 ms, and after a failed lookup there
// is none for a second.
package lmcache

// Package lmcache asks the HTTP controller of an LMCache deployment (lmcache_controller, 0.5) what its workers have
// cached, for the policy lmcache_aware, which itself does no I/O.
//
//	client := lmcache.New(parameters, fleet, nil, log)
//	go client.Run(ctx)                   // polls
//	spec.Source = client.Cached          // of the policy
//
// It never fails a request and never holds one for long: a lookup has 200 ms at the most, and after one that failed
// none is tried for a second.
package lmcache

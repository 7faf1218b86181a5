package app

import (
	"reflect"
	"testing"

	"github.com/warmpath/warmpath/internal/replica"
	"github.com/warmpath/warmpath/internal/sharedindex"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// Each figure of a component reaches the metric that has its name.
func TestFiguresReachTheirMetrics(t *testing.T) {
	dropped := map[string]uint64{"old": 1}
	shared := sharedindex.Stats{Connected: true, Lookups: 1, Failed: 2, RoundTrips: 3, CacheHits: 4, CacheMiss: 5, Invalid: 6, Writers: 7, Holders: 8,
		PlacementsWritten: 9, PlacementsDropped: 10, PlacementHolders: 11, Written: 12, Waiting: 13, Dropped: 14, Resyncs: 15, Refused: 16, Sessions: 17}
	for _, c := range []struct{ got, want any }{
		{syncFigures(replica.Status{Connected: true, Requests: 1,
			Peers:  []replica.PeerStatus{{ID: "i", Name: "n", Requests: 2, Told: 3, Refused: 4, Forgotten: 5, HeartbeatAge: 6, Delay: 7}},
			Counts: replica.Traffic{Sent: 8, SentBytes: 9, Received: 10, ReceivedBytes: 11, Failed: 12, Asks: 13, Answers: 14, Repairs: 15, Connects: 16, Dropped: dropped}}),
			telemetry.Sync{Connected: true, Requests: 1,
				Peers: []telemetry.SyncPeer{{Name: "n", Requests: 2, Refused: 4, Forgotten: 5, HeartbeatAge: 6, Delay: 7}},
				Sent:  8, SentBytes: 9, Received: 10, ReceivedBytes: 11, Failed: 12, Asks: 13, Answers: 14, Repairs: 15, Connects: 16, Dropped: dropped}},
		{readerFigures(shared), telemetry.SharedReader{Connected: true, Holders: 8, LearnedHolders: 11, Answered: 1, Failed: 2, RoundTrips: 3, CacheHits: 4, CacheMiss: 5, Invalid: 6}},
		{placementFigures(shared), telemetry.SharedPlacements{Written: 9, Dropped: 10}},
		{writerFigures(shared), telemetry.SharedWriter{Connected: true, Holders: 8, Waiting: 13, Written: 12, Dropped: 14, Refused: 16, Resyncs: 15, Sessions: 17}},
	} {
		if !reflect.DeepEqual(c.got, c.want) {
			t.Errorf("%+v\nwant %+v", c.got, c.want)
		}
	}
}

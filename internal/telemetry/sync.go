package telemetry

import "github.com/prometheus/client_golang/prometheus"

// Sync has the figures of the sharing of requests with other routers.
type Sync struct {
	Connected bool // the requests are shared; false: the router serves alone
	Requests  int  // requests under way of this router that the others are told of
	Peers     []SyncPeer
	// What was sent and received since the start. Failed counts packets that were not sent, Asks questions for all
	// requests of a peer, and Repairs answers that were applied.
	Sent, SentBytes, Received, ReceivedBytes, Failed uint64
	Asks, Answers, Repairs, Connects                 uint64
	Dropped                                          map[string]uint64 // packets and messages, by reason
}

// SyncPeer is one other router.
type SyncPeer struct {
	Name         string
	Requests     int     // its requests under way that this router follows
	Refused      int     // requests among them whose worker this router does not know
	Forgotten    uint64  // requests that were forgotten before their end
	HeartbeatAge float64 // seconds since its last heartbeat
	Delay        float64 // mean seconds that its messages take; 0: not known yet
}

// syncMetrics describes the metrics of the sharing of requests with other routers.
type syncMetrics struct {
	connected, peers, requests, age, delay, refused, forgotten *prometheus.Desc
	sent, sentBytes, received, receivedBytes, failed           *prometheus.Desc
	dropped, asks, answers, repairs, connects, underWay        *prometheus.Desc
}

func newSyncMetrics(desc func(name, help string, labels []string) *prometheus.Desc) syncMetrics {
	router := []string{"router"}
	return syncMetrics{
		connected:     desc("sync_connected", "1 while this router shares its requests: NATS is connected, or the embedded server is connected to another one. 0 while it serves alone. Absent without sync.", nil),
		peers:         desc("sync_peers", "Other routers that share their requests with this one.", nil),
		underWay:      desc("sync_requests", "Requests under way of this router that the others are told of.", nil),
		requests:      desc("sync_peer_requests", "Requests under way at another router that count as load here, by the name of that router.", router),
		refused:       desc("sync_peer_refused_requests", "Those of another router's requests under way whose worker this router does not know. They do not count as load.", router),
		forgotten:     desc("sync_peer_forgotten_requests_total", "Requests under way at another router that were forgotten here before their end, because it has more than 65,536. They do not count as load.", router),
		age:           desc("sync_peer_heartbeat_age_seconds", "Time since another router's last heartbeat.", router),
		delay:         desc("sync_peer_delay_seconds", "Mean time that messages of another router take: half of a round trip. 0: not known yet.", router),
		sent:          desc("sync_packets_sent_total", "Packets of messages that were sent to other routers.", nil),
		sentBytes:     desc("sync_sent_bytes_total", "Bytes of the packets that were sent (warmpath_sync_packets_sent_total).", nil),
		received:      desc("sync_packets_received_total", "Packets of messages that were received, also those that were dropped.", nil),
		receivedBytes: desc("sync_received_bytes_total", "Bytes of the packets that were received (warmpath_sync_packets_received_total).", nil),
		failed:        desc("sync_packets_failed_total", "Packets that NATS did not take.", nil),
		dropped:       desc("sync_dropped_total", "Packets and messages that were dropped, by reason: malformed, version, unsigned, signature, old (received before), own, other (for another router), too_many, unknown (a kind of a newer version), queue (no room before sending), alone (no connection), slow (read too slowly), memory (requests that waited for their worker, or keys of their prompts, took too many bytes).", []string{"reason"}),
		asks:          desc("sync_asks_total", "Questions to other routers for all their requests under way: at a start, and after messages were lost.", nil),
		answers:       desc("sync_answers_total", "Answers to such questions of other routers (warmpath_sync_asks_total).", nil),
		repairs:       desc("sync_repairs_total", "Answers with all requests under way of another router that were applied here.", nil),
		connects:      desc("sync_connects_total", "Number of times that the connection to the other routers came about.", nil),
	}
}

func (m *syncMetrics) collect(gauge setGauge, counter setCounter, s *Sync) {
	gauge(m.connected, oneIf(s.Connected))
	gauge(m.peers, float64(len(s.Peers)))
	gauge(m.underWay, float64(s.Requests))
	seen := map[string]bool{}
	for _, p := range s.Peers {
		if seen[p.Name] {
			continue // two routers with one name: the operator sees both in GET /admin/replicas
		}
		seen[p.Name] = true
		gauge(m.requests, float64(p.Requests-p.Refused), p.Name)
		gauge(m.refused, float64(p.Refused), p.Name)
		counter(m.forgotten, p.Forgotten, p.Name)
		gauge(m.age, p.HeartbeatAge, p.Name)
		gauge(m.delay, p.Delay, p.Name)
	}
	counter(m.sent, s.Sent)
	counter(m.sentBytes, s.SentBytes)
	counter(m.received, s.Received)
	counter(m.receivedBytes, s.ReceivedBytes)
	counter(m.failed, s.Failed)
	for reason, n := range s.Dropped {
		counter(m.dropped, n, reason)
	}
	counter(m.asks, s.Asks)
	counter(m.answers, s.Answers)
	counter(m.repairs, s.Repairs)
	counter(m.connects, s.Connects)
}

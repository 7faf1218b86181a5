package sharedindex_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/warmpath/warmpath/test/testenv"
)

// hashLookup reads hashes of holders on the server, and answers how many leading blocks each holder has.
var hashLookup = valkey.NewLuaScript(`
local run, n = {}, 0
for i, key in ipairs(KEYS) do
  local all, any = redis.call('HGETALL', key), false
  for j = 1, #all, 2 do
    if (run[all[j]] or 0) == i - 1 then run[all[j]], any = i, true end
  end
  if not any then break end
end
local out = {}
for holder, blocks in pairs(run) do out[#out + 1] = holder; out[#out + 1] = blocks end
return out`)

// stringLookup does the same with strings of entries of four bytes.
var stringLookup = valkey.NewLuaScript(`
local run = {}
local all = redis.call('MGET', unpack(KEYS))
for i = 1, #KEYS do
  local v, any = all[i], false
  if not v then break end
  for j = 1, #v, 4 do
    local holder = string.sub(v, j, j + 2)
    if (run[holder] or 0) == i - 1 then run[holder], any = i, true end
  end
  if not any then break end
end
local out = {}
for holder, blocks in pairs(run) do out[#out + 1] = holder; out[#out + 1] = blocks end
return out`)

// BenchmarkTried compares ways to look up 512 blocks of 8 holders: the table in docs/design/0068-shared-index.md.
func BenchmarkTried(b *testing.B) {
	const holders, others = 8, 200_000
	for _, kind := range testenv.ValkeyKinds {
		s := testenv.StartValkey(b, kind)
		ctx := context.Background()
		client, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{s.Address}, CacheSizeEachConn: 64 << 20})
		if err != nil {
			b.Fatal(err)
		}
		var value []byte
		for h := range uint32(holders) {
			value = binary.BigEndian.AppendUint32(value, h<<8|1)
		}
		name := func(kind string, i uint64) string {
			return "wp:" + kind + string(binary.BigEndian.AppendUint64(nil, i*0x9e3779b97f4a7c15))
		}
		fill := func(from, to uint64) {
			var cmds valkey.Commands
			for i := from; i < to; i++ {
				cmds = append(cmds, client.B().Set().Key(name("s", i)).Value(string(value)).Ex(time.Hour).Build())
				h := client.B().Hset().Key(name("h", i)).FieldValue()
				for j := range holders {
					h = h.FieldValue(fmt.Sprint(j), "1")
				}
				cmds = append(cmds, h.Build())
			}
			for _, r := range client.DoMulti(ctx, cmds...) {
				if r.Error() != nil {
					b.Fatal(r.Error())
				}
			}
		}
		for i := uint64(0); i < others; i += 1000 {
			fill(i, i+1000)
		}
		for _, n := range []uint64{64, 512} {
			request := func(kind string) (keys []string) {
				first := rand.Uint64N(others - n)
				for i := range n {
					keys = append(keys, name(kind, first+i))
				}
				return keys
			}
			hot := request("s")
			mget := func(keys []string) {
				list, err := client.Do(ctx, client.B().Mget().Key(keys...).Build()).ToArray()
				if err != nil || len(list) != len(keys) || list[0].IsNil() {
					b.Fatal(err, len(list))
				}
			}
			multi := func(cmds valkey.Commands) {
				for _, r := range client.DoMulti(ctx, cmds...) {
					if r.Error() != nil {
						b.Fatal(r.Error())
					}
				}
			}
			for _, way := range []struct {
				name string
				run  func()
			}{
				{"MGET", func() { mget(request("s")) }},
				{"MGET of 64, then of the rest", func() {
					keys := request("s")
					if mget(keys[:64]); n > 64 {
						mget(keys[64:])
					}
				}},
				{"GET, pipelined", func() {
					var cmds valkey.Commands
					for _, key := range request("s") {
						cmds = append(cmds, client.B().Get().Key(key).Build())
					}
					multi(cmds)
				}},
				{"HGETALL, pipelined", func() {
					var cmds valkey.Commands
					for _, key := range request("h") {
						cmds = append(cmds, client.B().Hgetall().Key(key).Build())
					}
					multi(cmds)
				}},
				{"script on hashes", func() {
					if r := hashLookup.Exec(ctx, client, request("h"), nil); r.Error() != nil {
						b.Fatal(r.Error())
					}
				}},
				{"script on strings", func() {
					if r := stringLookup.Exec(ctx, client, request("s"), nil); r.Error() != nil {
						b.Fatal(r.Error())
					}
				}},
				{"client cache, a hot prompt", func() {
					if m, err := valkey.MGetCache(client, ctx, time.Minute, hot); err != nil || len(m) != len(hot) {
						b.Fatal(err)
					}
				}},
				{"client cache, other prompts", func() {
					if _, err := valkey.MGetCache(client, ctx, time.Minute, request("s")); err != nil {
						b.Fatal(err)
					}
				}},
			} {
				b.Run(fmt.Sprintf("%s/%d blocks/%s", kind, n, way.name), func(b *testing.B) {
					var times []time.Duration
					for b.Loop() {
						start := time.Now()
						way.run()
						times = append(times, time.Since(start))
					}
					slices.Sort(times)
					b.ReportMetric(float64(times[len(times)/2].Microseconds()), "p50-µs")
					b.ReportMetric(float64(times[len(times)*99/100].Microseconds()), "p99-µs")
				})
			}
		}
		client.Close()
	}
}

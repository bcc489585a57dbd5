package admin

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/fields"
)

// Counters describes a snapshot. What is in Counters never falls; what is in Gauges is as of now.
type Counters struct {
	Time     time.Time         `json:"time"`
	Counters map[string]uint64 `json:"counters"`
	Gauges   map[string]uint64 `json:"gauges"`
}

// Source is what is counted; a [stack.Stack] is one. PacketPort may return nil.
type Source interface {
	Stats() stack.Stats
	Counters() iter.Seq2[string, uint64]
	Gauges() iter.Seq2[string, uint64]
	Health() []stack.Health
	Devices() []*dv.Device
	PacketPort() packet.Netdev
}

// Count reads every counter.
func Count(from Source) Counters {
	c := Counters{time.Now(), map[string]uint64{}, map[string]uint64{}}
	for name, n := range from.Counters() {
		c.Counters[snakeCase(name)] = n
	}
	for name, n := range from.Gauges() {
		c.Gauges[snakeCase(name)] = n
	}
	for _, f := range fields.Of(from.Stats()) {
		switch f.Name {
		case "link_up":
			c.Gauges[f.Name] = f.Value
		case "rx_unknown", "link_changes", "address_conflicts", "address_defences",
			"hardware_addr_conflicts", "resolvers_refused", "neighbour_moves", "neighbour_drops",
			"neighbour_overflows", "group_frame_drops", "dhcp_sent", "dhcp_refused",
			"tcp_failed_dials":
			c.Counters[f.Name] = f.Value // the others are among netstack's
		}
	}
	for _, h := range from.Health() {
		c.Counters["health_"+h.Reporter+"_error"] = h.Error
		c.Counters["health_"+h.Reporter+"_recover"] = h.Recover
	}
	rx, tx := 0, 0
	for _, d := range from.Devices() { // queues are numbered through
		st := d.Stats()
		addQueues(c.Counters, "rx", rx, st.Rx)
		addQueues(c.Counters, "tx", tx, st.Tx)
		ringsOf(c.Gauges, d, rx, tx)
		c.Gauges["rx_active_queues"] += uint64(st.ActiveRxQueues)
		c.Counters["rx_spread_changes"] += st.Rebalances
		rx, tx = rx+len(st.Rx), tx+len(st.Tx)
	}
	if p := from.PacketPort(); p != nil {
		st := p.Stats()
		addQueues(c.Counters, "rx", 0, st.Rx)
		addQueues(c.Counters, "tx", 0, st.Tx)
		if x := st.XDP; x != nil {
			c.Gauges["xdp_queues"], c.Gauges["xdp_queues_bound"] = uint64(x.Queues),
				uint64(x.Bound)
			c.Gauges["xdp_netdev_queues"] = uint64(x.NetdevQueues)
			c.Counters["xdp_netdev_queue_changes"] = x.QueueChanges
		}
	}
	return c
}

// snakeCase returns a dotted name with underscores: TCP.Retransmits is tcp_retransmits.
func snakeCase(name string) string {
	parts := strings.Split(name, ".")
	for i, p := range parts {
		parts[i] = fields.Snake(p)
	}
	return strings.Join(parts, "_")
}

// addQueues adds the counters of each queue, numbered from first: rx0_packets.
func addQueues[Q any](to map[string]uint64, direction string, first int, all []Q) {
	for i, q := range all {
		for _, f := range fields.Of(q) {
			to[fmt.Sprintf("%s%d_%s", direction, first+i, f.Name)] = f.Value
		}
	}
}

// ringsOf adds how full the rings are, numbered from rx and tx. It waits for whoever sends.
func ringsOf(to map[string]uint64, d *dv.Device, rx, tx int) {
	for i := range d.NumRx() {
		q := d.Rx(i)
		to[fmt.Sprintf("rx%d_ring_left", rx+i)] = uint64(q.Left())
		to[fmt.Sprintf("rx%d_ring_size", rx+i)] = uint64(q.Size())
	}
	for i := range d.NumTx() {
		q := d.Tx(i)
		q.Lock()
		free := q.Free()
		q.Unlock()
		to[fmt.Sprintf("tx%d_ring_used", tx+i)] = uint64(q.Size() - free)
		to[fmt.Sprintf("tx%d_ring_size", tx+i)] = uint64(q.Size())
	}
}

// Names returns the names of both kinds, in order.
func (c Counters) Names() []string {
	names := slices.Collect(maps.Keys(c.Counters))
	return slices.Sorted(slices.Values(slices.AppendSeq(names, maps.Keys(c.Gauges))))
}

// Value returns the value of a name; ok is false if there is none.
func (c Counters) Value(name string) (n uint64, ok bool) {
	if n, ok = c.Counters[name]; !ok {
		n, ok = c.Gauges[name]
	}
	return n, ok
}

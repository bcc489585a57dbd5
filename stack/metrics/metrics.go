package metrics

import (
	"bytes"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strings"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/fields"
)

// ContentType is that of what [Write] writes.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// prefix of all names.
const prefix = "rdma_netstack_"

// Source is what is measured; a [stack.Stack] is one. Device and PacketPort may return
// nil.
type Source interface {
	Stats() stack.Stats
	Counters() iter.Seq2[string, uint64]
	Gauges() iter.Seq2[string, uint64]
	Health() []stack.Health
	Device() *dv.Device
	PacketPort() *packet.Port
}

// Handler answers a scrape. It may be used from any goroutine.
func Handler(from Source) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", ContentType)
		Write(w, from) // who asked is gone if it fails
	})
}

// Write writes the present values. Its errors are those of w.
func Write(w io.Writer, from Source) error {
	var device dv.Stats
	if d := from.Device(); d != nil {
		device = d.Stats()
	}
	var b bytes.Buffer
	list(&b, from.Stats(), device)
	if p := from.PacketPort(); p != nil {
		sockets := p.Stats()
		queues(&b, "rx", sockets.Rx)
		queues(&b, "tx", sockets.Tx)
	}
	reporters(&b, from.Health())
	named(&b, from.Counters(), false)
	named(&b, from.Gauges(), true)
	_, err := w.Write(b.Bytes())
	return err
}

// list writes all families: of the stack, then of the device's queues.
func list(b *bytes.Buffer, of stack.Stats, device dv.Stats) {
	for _, f := range fields.Of(of) {
		family(b, "stack_"+f.Name, f.Name == "link_up" ||
			f.Name == "tcp_current_established", "of the stack")
		fmt.Fprintf(b, " %d\n", f.Value)
	}
	queues(b, "rx", device.Rx)
	queues(b, "tx", device.Tx)
}

// reporters writes what the health reporters say, a family at a time.
func reporters(b *bytes.Buffer, all []stack.Health) {
	for _, f := range []struct {
		name  string
		gauge bool
		of    func(stack.Health) uint64
	}{
		{"health_error", false, func(h stack.Health) uint64 { return h.Error }},
		{"health_recover", false, func(h stack.Health) uint64 { return h.Recover }},
		{"health_in_error", true, func(h stack.Health) uint64 {
			if h.State == stack.InError {
				return 1
			}
			return 0
		}},
	} {
		for i, h := range all {
			if i == 0 {
				family(b, f.name, f.gauge, "of a health reporter")
			} else if f.gauge {
				fmt.Fprintf(b, "%s%s", prefix, f.name)
			} else {
				fmt.Fprintf(b, "%s%s_total", prefix, f.name)
			}
			fmt.Fprintf(b, "{reporter=\"%s\"} %d\n", h.Reporter, f.of(h))
		}
	}
}

// named writes values with dotted names: TCP.Retransmits is tcp_retransmits. Milliseconds become
// seconds, Prometheus' base unit.
func named(b *bytes.Buffer, all iter.Seq2[string, uint64], gauge bool) {
	for name, value := range all {
		parts := strings.Split(name, ".")
		for i, p := range parts {
			parts[i] = fields.Snake(p)
		}
		metric, about := strings.Join(parts, "_"), "as "+name+" of Stack.Counters and Stack.Gauges"
		if of, ok := strings.CutSuffix(metric, "_milliseconds"); ok {
			family(b, of+"_seconds", gauge, about)
			fmt.Fprintf(b, " %d.%03d\n", value/1000, value%1000)
			continue
		}
		family(b, metric, gauge, about)
		fmt.Fprintf(b, " %d\n", value)
	}
}

// family writes what is said once of a name, and leaves the name of the sample behind.
func family(b *bytes.Buffer, name string, gauge bool, about string) {
	kind := "counter"
	if gauge {
		kind = "gauge"
	} else {
		name += "_total"
	}
	help := strings.ReplaceAll(name, "_", " ") + " " + about
	fmt.Fprintf(b, "# HELP %s%s %s.\n# TYPE %[1]s%[2]s %[4]s\n%[1]s%[2]s", prefix, name, help, kind)
}

// queues writes the counters of all queues of one direction, a family at a time.
func queues[Q any](b *bytes.Buffer, direction string, all []Q) {
	var values [][]fields.Field
	for _, q := range all {
		values = append(values, fields.Of(q))
	}
	for i := 0; len(values) > 0 && i < len(values[0]); i++ {
		name := "device_" + direction + "_" + values[0][i].Name
		family(b, name, false, "of a queue of the device")
		for queue, of := range values {
			if queue > 0 {
				fmt.Fprintf(b, "%s%s_total", prefix, name)
			}
			fmt.Fprintf(b, "{queue=\"%d\"} %d\n", queue, of[i].Value)
		}
	}
}

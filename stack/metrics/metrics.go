package metrics

import (
	"bytes"
	"fmt"
	"io"
	"iter"
	"net/http"
	"reflect"
	"strings"
	"unicode"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/stack"
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
	named(&b, from.Counters(), false)
	named(&b, from.Gauges(), true)
	_, err := w.Write(b.Bytes())
	return err
}

// list writes all families: of the stack, then of the device's queues.
func list(b *bytes.Buffer, of stack.Stats, device dv.Stats) {
	for _, f := range flatten("", reflect.ValueOf(of)) {
		family(b, "stack_"+f.name, f.name == "link_up" ||
			f.name == "tcp_current_established", "of the stack")
		fmt.Fprintf(b, " %d\n", f.value)
	}
	queues(b, "rx", device.Rx)
	queues(b, "tx", device.Tx)
}

// named writes values with dotted names: TCP.Retransmits is tcp_retransmits.
func named(b *bytes.Buffer, all iter.Seq2[string, uint64], gauge bool) {
	for name, value := range all {
		parts := strings.Split(name, ".")
		for i, p := range parts {
			parts[i] = snake(p)
		}
		family(b, strings.Join(parts, "_"), gauge, "as "+name+" of Stack.Counters and Stack.Gauges")
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
	var values [][]field
	for _, q := range all {
		values = append(values, flatten("", reflect.ValueOf(q)))
	}
	for i := 0; len(values) > 0 && i < len(values[0]); i++ {
		name := "device_" + direction + "_" + values[0][i].name
		family(b, name, false, "of a queue of the device")
		for queue, of := range values {
			if queue > 0 {
				fmt.Fprintf(b, "%s%s_total", prefix, name)
			}
			fmt.Fprintf(b, "{queue=\"%d\"} %d\n", queue, of[i].value)
		}
	}
}

// field is one number of a struct of counters.
type field struct {
	name  string
	value uint64
}

// flatten lists the numbers and truths of a struct, those of structs in it with their field's name
// in front.
func flatten(under string, v reflect.Value) (all []field) {
	for i := range v.NumField() {
		name := under + snake(v.Type().Field(i).Name)
		switch f := v.Field(i); f.Kind() {
		case reflect.Uint64:
			all = append(all, field{name, f.Uint()})
		case reflect.Bool:
			n := uint64(0)
			if f.Bool() {
				n = 1
			}
			all = append(all, field{name, n})
		case reflect.Struct:
			all = append(all, flatten(name+"_", f)...)
		}
	}
	return all
}

// snake writes a Go name as Prometheus does: TCPFailedDials is tcp_failed_dials.
func snake(name string) string {
	letters := []rune(name)
	var b strings.Builder
	for i, l := range letters {
		begins := i > 0 && unicode.IsUpper(l) &&
			(unicode.IsLower(letters[i-1]) || i+1 < len(letters) && unicode.IsLower(letters[i+1]))
		if begins {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(l))
	}
	return b.String()
}

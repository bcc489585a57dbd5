package metrics

import (
	"io"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/fields"
)

// exporter answers scrapes of one stack.
type exporter struct {
	stack   *stack.Stack
	program func() []ProgramSockets
	rtt     rtt
}

// ProgramSockets counts sockets of a program whose sockets are the slice's or the kernel's, see
// package unmodified.
type ProgramSockets struct {
	Kind  string // such as "tcp_listener"
	Way   string // "slice" or "kernel"
	Count uint64
}

// Handler answers a scrape. It may be used from any goroutine, and after the stack's end.
func Handler(st *stack.Stack) http.Handler { return ProgramHandler(st, nil) }

// ProgramHandler returns Handler with the sockets of a program; nil: there are none to tell.
func ProgramHandler(st *stack.Stack, program func() []ProgramSockets) http.Handler {
	e := &exporter{stack: st, program: program}
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", ContentType)
		e.write(w) // who asked is gone if it fails
	})
}

// write writes the present values. Its errors are those of w.
func (e *exporter) write(w io.Writer) error {
	var p page
	st := e.stack
	p.writeVersions(debug.ReadBuildInfo())
	r := readRings(st)
	p.writeRings(r)
	p.writeDropped(st, r)
	p.writeLink(st)
	p.writeBackend(st)
	p.writeHealth(st.Health())
	p.filter(st.Filter().Status())
	p.writeNetwork(st)
	p.writeHost(st)
	sockets := st.Sockets()
	p.writeSockets(sockets)
	if e.program != nil {
		p.programSockets(e.program())
	}
	e.rtt.sampleRTTs(sockets, time.Now())
	e.rtt.write(&p)
	p.writeEvents(st)
	_, err := w.Write(p.Bytes())
	return err
}

// programSockets writes which way the sockets of a program went.
func (p *page) programSockets(all []ProgramSockets) {
	var samples []sample
	for _, s := range all {
		samples = append(samples, of(s.Count, "kind", s.Kind, "way", s.Way))
	}
	p.family(counter, "program_sockets_total", "Sockets that an unmodified program made, by who "+
		"serves them.", samples...)
}

// own is the module's name, as the build information has it.
const own = "github.com/rdma-netstack/rdma-netstack"

// writeVersions writes which build this is.
func (p *page) writeVersions(info *debug.BuildInfo, ok bool) {
	if !ok {
		return
	}
	version, gvisor := "", ""
	if info.Main.Path == own {
		version = info.Main.Version
	}
	for _, m := range info.Deps {
		switch m.Path {
		case own:
			version = m.Version
		case "gvisor.dev/gvisor":
			gvisor = m.Version
		}
	}
	p.family(gauge, "build_info", "1, with the versions in labels.",
		of(1, "version", version, "gvisor", gvisor, "go", info.GoVersion))
}

// writeHealth writes what the health reporters say.
func (p *page) writeHealth(all []stack.Health) {
	var now, errors, recovers []sample
	for _, h := range all {
		now = append(now, truth(h.State == stack.InError, "reporter", h.Reporter))
		errors = append(errors, of(h.Error, "reporter", h.Reporter))
		recovers = append(recovers, of(h.Recover, "reporter", h.Reporter))
	}
	p.family(gauge, "health_in_error", "1 while what a health reporter is about is in error.",
		now...)
	p.family(counter, "health_errors_total", "Times that it went into error.", errors...)
	p.family(counter, "health_recoveries_total", "Times that it came out of error.", recovers...)
}

// writeHost writes what a stack on the host's own addresses shares with Linux.
func (p *page) writeHost(st *stack.Stack) {
	h, ok := st.HostStats()
	if !ok {
		return
	}
	p.family(counter, "twin_accepts_total",
		"Connections that came by Linux and were accepted from a kernel socket.", of(h.Accepted))
	p.family(counter, "twin_dials_total",
		"Connections that were dialled by a kernel socket.", of(h.Dialled))
	p.family(counter, "twin_datagrams_total", "Datagrams by kernel sockets.",
		of(h.Received, "direction", "rx"), of(h.Sent, "direction", "tx"))
	p.family(counter, "host_fragments_dropped_total",
		"Fragments that were kept in vain: the rest of their datagram did not come.",
		of(h.FragmentsDropped))
}

// writeEvents writes every counter of netstack and the link, by its name in rdma-netstack status
// stats.
func (p *page) writeEvents(st *stack.Stack) {
	var all []sample
	for name, n := range st.Counters() {
		if strings.HasPrefix(name, "Failover.") {
			continue // has families of its own, in seconds
		}
		parts := strings.Split(name, ".")
		for i, part := range parts {
			parts[i] = fields.Snake(part)
		}
		all = append(all, of(n, "name", strings.Join(parts, "_")))
	}
	p.family(counter, "events_total",
		"Every counter of the stack, by its name in rdma-netstack status stats.", all...)
}

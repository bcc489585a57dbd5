package admin

import (
	"runtime"
	rtmetrics "runtime/metrics"
	"slices"
	"sync"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/metrics"
)

// Facts tells what the counters of a stack do not: how it is set up, what the process spends on
// collecting garbage, and what somebody has turned on to look at it.
type Facts struct {
	Time time.Time `json:"time"`
	// Backend is as in Info. Device names the RDMA device whose rings carry the frames, Netdev the
	// interface of these rings or of the packet sockets; "" where there is none.
	Backend string `json:"backend"`
	Device  string `json:"device,omitempty"`
	Netdev  string `json:"netdev,omitempty"`
	// MTU gives that of the stack, PortMTU that of the interface below; 0: not known.
	MTU     int `json:"mtu"`
	PortMTU int `json:"port_mtu,omitempty"`
	// Segments says that the NIC, or the kernel below packet sockets, segments what is sent.
	Segments bool `json:"segments"`
	// Processors says how many the process uses at a time (GOMAXPROCS). BusySeconds counts their
	// time that was not idle, and GCSeconds what of it went to garbage collection.
	Processors  int     `json:"processors"`
	BusySeconds float64 `json:"busy_seconds"`
	GCSeconds   float64 `json:"gc_seconds"`
	// Captures holds when each capture began that this handler serves now.
	Captures []time.Time `json:"captures,omitempty"`
	// Debug repeats Config.Debug.
	Debug []string `json:"debug,omitempty"`
}

// ReadFacts returns what can be told of a stack without a handler: all but Captures and Debug.
func ReadFacts(st *stack.Stack) Facts {
	f := Facts{Time: time.Now(), Backend: metrics.BackendOf(st), MTU: st.MTU(), Segments: true,
		Processors: runtime.GOMAXPROCS(0)}
	for _, d := range st.Devices() {
		f.Segments = f.Segments && d.Caps().TxCsum && d.Caps().MaxTSO > 0
	}
	if d := st.Device(); d != nil {
		f.Device, f.Netdev, f.PortMTU = d.Name(), d.Netdev(), st.NetdevMTU()
	} else if p := st.PacketPort(); p != nil {
		f.Netdev, f.PortMTU = p.Name(), p.MTU()
	}
	f.BusySeconds, f.GCSeconds = readProcessorTime()
	return f
}

// readProcessorTime returns for how long processors were busy, and what of this went to garbage
// collection. What the collector does on idle processors is in neither.
func readProcessorTime() (busy, collecting float64) {
	samples := []rtmetrics.Sample{
		{Name: "/cpu/classes/total:cpu-seconds"}, {Name: "/cpu/classes/idle:cpu-seconds"},
		{Name: "/cpu/classes/gc/total:cpu-seconds"},
		{Name: "/cpu/classes/gc/mark/idle:cpu-seconds"},
	}
	rtmetrics.Read(samples)
	values := make([]float64, len(samples))
	for i, s := range samples {
		if s.Value.Kind() == rtmetrics.KindFloat64 { // another release may lack one
			values[i] = s.Value.Float64()
		}
	}
	spare := values[1] + values[3]
	return max(0, values[0]-spare), max(0, values[2]-values[3])
}

// facts returns those of the process and its stack.
func (h *handler) facts() Facts {
	f := ReadFacts(h.Stack)
	f.Captures, f.Debug = h.captures.list(), h.Debug
	return f
}

// captureList holds when each capture began that runs.
type captureList struct {
	mu    sync.Mutex // guards began
	began map[*int]time.Time
}

// begin notes a capture, until the function that it returns is called.
func (l *captureList) begin() (end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.began == nil {
		l.began = map[*int]time.Time{}
	}
	key := new(int)
	l.began[key] = time.Now()
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.began, key)
	}
}

// list returns when those that run began, the first one first.
func (l *captureList) list() (all []time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, began := range l.began {
		all = append(all, began)
	}
	slices.SortFunc(all, time.Time.Compare)
	return all
}

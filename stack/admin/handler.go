package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/metrics"
)

// Config says what is shown. Stack is needed.
type Config struct {
	Stack *stack.Stack
	// Command names the program and its arguments; empty: os.Args.
	Command []string
	// About describes the device, in a few words.
	About string
	// Checks are run by /healthz, besides that the stack has not ended.
	Checks []Check
	// Ready is asked by /readyz: an error says why there should be no requests now. nil: healthy is
	// ready.
	Ready func() error
	// Netdev says what the interface counts that Linux has on the same port. nil: it is read from
	// sysfs, if the stack's device has an interface.
	Netdev func() Traffic
	// Program counts the sockets of a program for /metrics, see package unmodified. nil: nobody
	// does.
	Program func() []metrics.ProgramSockets
	// Debug names what the program serves to its clients for debugging only, see Facts. nil:
	// nothing.
	Debug []string
}

// Check describes one line of /healthz. Run is called from many goroutines and returns at once.
type Check struct {
	Name string
	Run  func() error
}

// Info describes the process.
type Info struct {
	PID       int            `json:"pid"`
	Command   []string       `json:"command"`
	Started   time.Time      `json:"started"` // when the handler was made
	Name      string         `json:"name"`
	MAC       string         `json:"mac"`
	Addresses []netip.Prefix `json:"addresses"`
	MTU       int            `json:"mtu"`
	// Backend says what the uplink is now: rings, packet or none; link if the stack was made
	// by stack.New.
	Backend string `json:"backend"`
	About   string `json:"about,omitempty"`
}

// handler has what Config has, and when it was made.
type handler struct {
	Config
	started  time.Time
	cache    statusCache
	viewers  atomic.Int32
	captures captureList
}

// Handler serves what the package comment lists. It may be used from any goroutine, and after the
// stack's end.
func Handler(cfg Config) http.Handler {
	if len(cfg.Command) == 0 {
		cfg.Command = os.Args
	}
	h := &handler{Config: cfg, started: time.Now()}
	mux := routes{}
	mux["GET /"] = servePage()
	mux["GET /events"] = h.serveEvents
	mux["GET /status"] = func(w http.ResponseWriter, r *http.Request) {
		serveJSON(func() any { return h.statusFor(r) })(w, r)
	}
	mux["GET /info"] = serveJSON(func() any { return h.about() })
	mux["GET /facts"] = serveJSON(func() any { return h.facts() })
	mux["GET /sockets"] = h.serveSockets
	mux["GET /stats"] = serveJSON(func() any { return Count(cfg.Stack) })
	mux["GET /errors"] = serveJSON(func() any { return Problems(Count(cfg.Stack)) })
	mux["GET /rules"] = serveJSON(func() any { return cfg.Stack.Rules() })
	mux["GET /filter"] = serveJSON(func() any { return cfg.Stack.Filter().Status() })
	mux["POST /filter/load"] = h.loadFilter
	mux["POST /filter/prefix"] = h.setFilterPrefix
	mux["GET /capture"] = h.serveCapture
	mux["POST /capture"] = h.serveCapture
	mux["GET /metrics"] = metrics.ProgramHandler(cfg.Stack, cfg.Program).ServeHTTP
	mux["GET /health"] = serveJSON(func() any { return Health(cfg.Stack) })
	mux["GET /health/dump"] = h.serveDump
	mux["POST /health/recover"] = h.serveRecover
	mux["GET /debug/profile"] = cpuProfile
	mux["GET /debug/trace"] = executionTrace
	mux["GET /debug/goroutines"] = goroutines
	mux["GET /healthz"] = h.healthz
	mux["GET /readyz"] = h.readyz
	return mux
}

// routes maps METHOD and path to who answers. http.ServeMux is no help: a program with a go line
// below 1.22 in its go.mod has one without methods (GODEBUG httpmuxgo121).
type routes map[string]http.HandlerFunc

// ServeHTTP implements http.Handler.
func (s routes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	if answer, ok := s[method+" "+r.URL.Path]; ok {
		answer(w, r)
		return
	}
	var allowed []string
	for _, m := range []string{http.MethodGet, http.MethodPost} {
		if _, ok := s[m+" "+r.URL.Path]; ok {
			allowed = append(allowed, m)
		}
	}
	if allowed == nil {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	http.Error(w, http.StatusText(http.StatusMethodNotAllowed), http.StatusMethodNotAllowed)
}

// serveJSON answers with the JSON of what get returns.
func serveJSON(get func() any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		beginJSON(w)
		json.NewEncoder(w).Encode(get()) // who asked is gone if it fails
	}
}

func beginJSON(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
}

func (h *handler) about() Info {
	st := h.Stack
	return Info{PID: os.Getpid(), Command: h.Command, Started: h.started, Name: st.Name(),
		MAC: st.HardwareAddr().String(), Addresses: st.Addrs(), MTU: st.MTU(),
		Backend: metrics.BackendOf(st), About: h.About}
}

// healthz says ok, or which checks fail.
func (h *handler) healthz(w http.ResponseWriter, _ *http.Request) {
	checks := append([]Check{{"stack", h.Stack.Err}}, h.Checks...)
	var failing strings.Builder
	for _, c := range checks {
		if err := c.Run(); err != nil {
			fmt.Fprintf(&failing, "%s: %v\n", c.Name, err)
		}
	}
	writeVerdict(w, failing.String())
}

func (h *handler) readyz(w http.ResponseWriter, r *http.Request) {
	if h.Stack.Draining() {
		writeVerdict(w, "draining\n")
		return
	}
	if h.Ready == nil {
		h.healthz(w, r)
		return
	}
	if err := h.Ready(); err != nil {
		writeVerdict(w, err.Error()+"\n")
		return
	}
	writeVerdict(w, "")
}

func writeVerdict(w http.ResponseWriter, failing string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if failing != "" {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, "failing\n"+failing)
		return
	}
	fmt.Fprintln(w, "ok")
}

package admin

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// Reporter is a health reporter, in the words of devlink-health(8).
type Reporter struct {
	Reporter    string            `json:"reporter"`
	State       stack.HealthState `json:"state"`
	Error       uint64            `json:"error"`
	Recover     uint64            `json:"recover"`
	Since       time.Time         `json:"since"`
	Reason      string            `json:"reason,omitempty"`    // of the last error
	Notice      string            `json:"notice,omitempty"`    // of what it does less well
	LastDump    *time.Time        `json:"last_dump,omitempty"` // that is kept
	GracePeriod int64             `json:"grace_period"`        // milliseconds
	AutoRecover bool              `json:"auto_recover"`
	AutoDump    bool              `json:"auto_dump"` // a dump is kept at an error
}

// Dump holds what the rings of one queue held.
type Dump struct {
	Queue  string         `json:"queue"`
	Time   time.Time      `json:"time"`
	Reason string         `json:"reason,omitempty"` // the error at which it was kept
	WQEs   []dv.DumpedWQE `json:"wqes"`
	CQEs   []dv.DumpedCQE `json:"cqes"`
}

// Health returns what the reporters of a stack say.
func Health(st *stack.Stack) []Reporter {
	var all []Reporter
	for _, h := range st.Health() {
		r := Reporter{Reporter: h.Reporter, State: h.State, Error: h.Error, Recover: h.Recover,
			Since: h.Since, GracePeriod: h.GracePeriod.Milliseconds(), AutoRecover: h.AutoRecover,
			AutoDump: h.Reporter != "link" && h.Reporter != "stack" && h.Reporter != "memory"}
		if h.Reason != nil {
			r.Reason = h.Reason.Error()
		}
		if h.Notice != nil {
			r.Notice = h.Notice.Error()
		}
		if !h.LastDump.IsZero() {
			r.LastDump = &h.LastDump
		}
		all = append(all, r)
	}
	return all
}

// dumpTime says how long a receive worker may take until it is at its queue again.
const dumpTime = 5 * time.Second

// serveDump answers with the dumps that are kept, or with new ones.
func (h *handler) serveDump(w http.ResponseWriter, r *http.Request) {
	reporter := r.FormValue("reporter")
	dumps, err := h.Stack.KeptDumps(reporter)
	if err == nil && (len(dumps) == 0 || r.FormValue("now") != "") {
		ctx, cancel := context.WithTimeout(r.Context(), dumpTime)
		defer cancel()
		dumps, err = h.Stack.Dump(ctx, reporter)
	}
	switch {
	case errors.Is(err, stack.ErrNoReporter):
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	case err != nil:
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	all := []Dump{}
	for i := range dumps {
		d := &dumps[i]
		out := Dump{Queue: d.Queue, Time: d.Time, WQEs: d.WQEs(), CQEs: d.CQEs()}
		if d.Err != nil {
			out.Reason = d.Err.Error()
		}
		all = append(all, out)
	}
	serveJSON(func() any { return all })(w, r)
}

// serveRecover lets a reporter's part be recovered, as far as there is anything to do.
func (h *handler) serveRecover(w http.ResponseWriter, r *http.Request) {
	if err := h.Stack.RecoverReporter(r.FormValue("reporter")); err != nil {
		code := http.StatusConflict
		if errors.Is(err, stack.ErrNoReporter) {
			code = http.StatusBadRequest
		}
		http.Error(w, err.Error(), code)
		return
	}
	json.NewEncoder(w).Encode(Health(h.Stack)) // who asked is gone if it fails
}

// ReadOnly returns handler without dumps and profiles, which tell much and cost time, without the
// rules of the filter, and without anything that changes the stack.
func ReadOnly(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			http.Error(w, "only GET here; the server's unix socket takes more",
				http.StatusMethodNotAllowed)
		case r.URL.Path == "/filter":
			http.Error(w, "the filter's rules are only for the server's unix socket",
				http.StatusForbidden)
		case r.URL.Path == "/health/dump", strings.HasPrefix(r.URL.Path, "/debug/"):
			http.Error(w, "dumps and profiles are only for the server's unix socket",
				http.StatusForbidden)
		default:
			handler.ServeHTTP(w, markReadOnly(r))
		}
	})
}

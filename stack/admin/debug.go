package admin

import (
	"context"
	"fmt"
	"net/http"
	"runtime/pprof"
	"runtime/trace"
	"strconv"
	"time"
)

// longestProfile is for how long a profile or trace is taken at most.
const longestProfile = 10 * time.Minute

// serveProfile answers with what start has written until the time is over or the client goes. One
// of a kind runs at a time in a process: start refuses another.
func serveProfile(w http.ResponseWriter, r *http.Request, start func() error, stop func()) {
	seconds := 5.0
	if text := r.FormValue("seconds"); text != "" {
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || !(n > 0) || n > longestProfile.Seconds() {
			http.Error(w, fmt.Sprintf("seconds=%s: want a number up to %.0f", text,
				longestProfile.Seconds()), http.StatusBadRequest)
			return
		}
		seconds = n
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Cache-Control", "no-store")
	if err := start(); err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	defer stop()
	ctx, cancel := context.WithTimeout(r.Context(), time.Duration(seconds*float64(time.Second)))
	defer cancel()
	<-ctx.Done()
}

// cpuProfile is of all goroutines; labels device and queue are those of the receive workers.
func cpuProfile(w http.ResponseWriter, r *http.Request) {
	serveProfile(w, r, func() error { return pprof.StartCPUProfile(w) }, pprof.StopCPUProfile)
}

// executionTrace has the regions poll, deliver and transmit of package link/rdma.
func executionTrace(w http.ResponseWriter, r *http.Request) {
	serveProfile(w, r, func() error { return trace.Start(w) }, trace.Stop)
}

// goroutines lists them as text, equal ones together, with their labels.
func goroutines(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	pprof.Lookup("goroutine").WriteTo(w, 1) // who asked is gone if it fails
}

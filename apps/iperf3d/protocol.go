package iperf3d

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"syscall"
	"time"
)

// state holds one byte on the control connection; the server's tell the client what to do next.
type state int8

const (
	testStart       state = 1
	testRunning     state = 2
	testEnd         state = 4
	paramExchange   state = 9
	createStreams   state = 10
	serverTerminate state = 11
	clientTerminate state = 12
	exchangeResults state = 13
	displayResults  state = 14
	iperfDone       state = 16
	accessDenied    state = -1
	serverError     state = -2
)

// cookieSize says what every connection of a test starts with: 36 characters and a NUL.
const cookieSize = 37

type cookie [cookieSize]byte

// maxJSON bounds one JSON message of the client, in bytes.
const maxJSON = 1 << 20

func writeState(w io.Writer, s state) error {
	_, err := w.Write([]byte{byte(s)})
	return err
}

func readState(r io.Reader) (state, error) {
	var b [1]byte
	_, err := io.ReadFull(r, b[:])
	return state(b[0]), err
}

// readJSON reads a message: its length, 4 bytes big-endian, then JSON.
func readJSON(r io.Reader, v any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxJSON {
		return fmt.Errorf("message of %d bytes, at most %d are taken", n, maxJSON)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return err
	}
	return json.Unmarshal(body, v)
}

func writeJSON(w io.Writer, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...))
	return err
}

// results holds what both sides send each other at the end, with iperf3's names.
type results struct {
	CPUTotal       float64        `json:"cpu_util_total"`
	CPUUser        float64        `json:"cpu_util_user"`
	CPUSystem      float64        `json:"cpu_util_system"`
	HasRetransmits int            `json:"sender_has_retransmits"`
	Congestion     string         `json:"congestion_used,omitempty"`
	Streams        []streamResult `json:"streams"`
}

// streamResult holds the result of one stream.
type streamResult struct {
	ID             int     `json:"id"`
	Bytes          int64   `json:"bytes"`
	Retransmits    int     `json:"retransmits"` // -1: not known
	Jitter         float64 `json:"jitter"`      // seconds
	Errors         int64   `json:"errors"`
	OmittedErrors  int64   `json:"omitted_errors"`
	Packets        int64   `json:"packets"`
	OmittedPackets int64   `json:"omitted_packets"`
	StartTime      float64 `json:"start_time"` // seconds
	EndTime        float64 `json:"end_time"`
}

// resultAfter returns the stream's counters after a test of that duration.
func (s *stream) resultAfter(d time.Duration) streamResult {
	return streamResult{
		ID: s.id, Bytes: s.bytes.Load() - s.omitted.bytes, Retransmits: -1,
		Jitter: time.Duration(s.jitter.Load()).
			Seconds(),
		Errors: s.errors.Load(), OmittedErrors: s.omitted.errors,
		Packets: s.packets.Load(), OmittedPackets: s.omitted.packets, EndTime: d.Seconds(),
	}
}

// cpuTimes gives the processor time this process has used.
type cpuTimes struct{ user, system time.Duration }

func readCPU() cpuTimes {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return cpuTimes{}
	}
	return cpuTimes{time.Duration(r.Utime.Nano()), time.Duration(r.Stime.Nano())}
}

// percentSince returns the processor use since begin.
func (begin cpuTimes) percentSince(d time.Duration) (user, system float64) {
	d = max(d, 1) // no NaN, which JSON does not have
	now := readCPU()
	return 100 * float64(
		now.user-begin.user,
	) / float64(d), 100 * float64(now.system-begin.system) / float64(d)
}

package iperf3d

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// state is one byte on the control connection; the server's tell the client what to do next.
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

package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"

	"github.com/tidwall/redcon"
)

// patience says how many questions on one connection the servers below answer before they close it.
const patience = 4

// serveRedis keeps values in memory, and closes a connection after some answers.
func serveRedis(_ context.Context, host string) error {
	var values sync.Map
	s := redcon.NewServer(net.JoinHostPort(host, "6379"),
		func(c redcon.Conn, cmd redcon.Command) {
			switch strings.ToLower(string(cmd.Args[0])) {
			case "set":
				values.Store(string(cmd.Args[1]), string(cmd.Args[2]))
				c.WriteString("OK")
			case "get":
				if v, ok := values.Load(string(cmd.Args[1])); ok {
					c.WriteBulkString(v.(string))
				} else {
					c.WriteNull()
				}
			case "ping":
				c.WriteString("PONG")
			default:
				c.WriteError("ERR unknown command")
			}
			n, _ := c.Context().(int)
			if c.SetContext(n + 1); n+1 == patience {
				c.Close()
			}
		}, nil, nil)
	return s.ListenAndServe()
}

// serveMetrics has one metric, for Prometheus.
func serveMetrics(_ context.Context, host string) error {
	return http.ListenAndServe(net.JoinHostPort(host, "9100"),
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "# TYPE answer gauge\nanswer 42\n")
		}))
}

// serveMySQL answers SELECT of a string, as much of MySQL as go-sql-driver needs for that
// (dev.mysql.com, "MySQL Client/Server Protocol"), and closes a connection after some answers.
func serveMySQL(_ context.Context, host string) error {
	l, err := net.Listen("tcp", net.JoinHostPort(host, "3306"))
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			s := mysqlSession{c: c, r: bufio.NewReader(c)}
			if err := s.serve(); err != nil && !errors.Is(err, io.EOF) {
				fmt.Println("mysql:", err)
			}
		}()
	}
}

// mysqlSession holds one connection.
type mysqlSession struct {
	c        net.Conn
	r        *bufio.Reader
	sequence byte // of the next packet
}

// Replies, and the capabilities of protocol 4.1 with plug-ins for authentication.
const (
	mysqlOK   = "\x00\x00\x00\x02\x00\x00\x00"
	mysqlEnd  = "\xfe\x00\x00\x02\x00"
	mysqlCaps = 0x00080000 | 0x8000 | 0x2000 | 0x0200 | 0x0008 | 0x0001

	mysqlQuit, mysqlQuery = 1, 3
)

func (s *mysqlSession) send(payload string) error {
	n := len(payload)
	b := append([]byte{byte(n), byte(n >> 8), byte(n >> 16), s.sequence}, payload...)
	s.sequence++
	_, err := s.c.Write(b)
	return err
}

func (s *mysqlSession) receive() (string, error) {
	var head [4]byte
	if _, err := io.ReadFull(s.r, head[:]); err != nil {
		return "", err
	}
	s.sequence = head[3] + 1
	b := make([]byte, int(head[0])|int(head[1])<<8|int(head[2])<<16)
	_, err := io.ReadFull(s.r, b)
	return string(b), err
}

func (s *mysqlSession) serve() error {
	caps := binary.LittleEndian.AppendUint32(nil, mysqlCaps)
	hello := "\x0a8.0.0\x00" + "\x01\x00\x00\x00" + "abcdefgh\x00" + string(caps[:2]) +
		"\x21\x02\x00" + string(caps[2:]) + "\x15" + strings.Repeat("\x00", 10) +
		"ijklmnopqrst\x00" + "mysql_native_password\x00"
	if err := s.send(hello); err != nil {
		return err
	}
	if _, err := s.receive(); err != nil {
		return err
	}
	if err := s.send(mysqlOK); err != nil {
		return err
	}
	for range patience {
		q, err := s.receive()
		if err != nil || q == "" || q[0] == mysqlQuit {
			return err
		}
		if q[0] == mysqlQuery {
			err = s.answer(q[1:])
		} else {
			err = s.send(mysqlOK)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// answer sends the string of SELECT 'string' as a table of one row and one column.
func (s *mysqlSession) answer(query string) error {
	value := strings.TrimSuffix(strings.TrimPrefix(query, "SELECT '"), "'")
	column := "\x03def\x00\x00\x00\x01n\x01n\x0c\x21\x00\xff\xff\x00\x00\xfd\x00\x00\x00\x00\x00"
	size := "\xfc" + string(binary.LittleEndian.AppendUint16(nil, uint16(len(value))))
	for _, packet := range []string{"\x01", column, mysqlEnd, size + value, mysqlEnd} {
		if err := s.send(packet); err != nil {
			return err
		}
	}
	return nil
}

// Command mysqlclient is a client of a MySQL server that closes its connections again and again:
// mysqlclient ADDRESS. It prints "checked" once the driver has found five that the server had
// closed, by reading from the connection's descriptor before it writes.
package main

import (
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"
)

// closed counts the connections that the driver says that the server has closed.
type closed struct{ atomic.Int32 }

func (c *closed) Print(v ...any) {
	if text := fmt.Sprint(v...); strings.Contains(text, "closing bad idle connection") {
		c.Add(1)
	} else {
		log.Print(text)
	}
}

func main() {
	var found closed
	if err := mysql.SetLogger(&found); err != nil {
		log.Fatal(err)
	}
	db, err := sql.Open("mysql", "user@tcp("+os.Args[1]+")/db")
	if err != nil {
		log.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	for db.Ping() != nil {
		time.Sleep(50 * time.Millisecond) // the server begins later
	}
	for i := 0; found.Load() < 5; i++ {
		want := strings.Repeat(fmt.Sprint(i, " "), 1+i%1000)
		var got string
		err := db.QueryRow("SELECT '" + want + "'").Scan(&got)
		if errors.Is(err, mysql.ErrInvalidConn) {
			continue // it was closed after the driver had looked
		}
		if err != nil || got != want {
			log.Fatalf("%q is %q: %v", want, got, err)
		}
		time.Sleep(time.Millisecond)
	}
	fmt.Println("checked")
	select {}
}

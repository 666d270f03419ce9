package ovsdb

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// Operation is one operation of a transaction (RFC 7047, section 5.2).
type Operation struct {
	Op        string            `json:"op"`
	Table     string            `json:"table,omitempty"`
	Where     *[]Condition      `json:"where,omitempty"` // not nil: an empty one selects all rows
	Columns   []string          `json:"columns,omitempty"`
	Row       map[string]any    `json:"row,omitempty"`
	Rows      *[]map[string]any `json:"rows,omitempty"` // not nil: an empty one is no row
	Name      string            `json:"uuid-name,omitempty"`
	Mutations [][3]any          `json:"mutations,omitempty"`
	Until     string            `json:"until,omitempty"`
	Timeout   *int              `json:"timeout,omitempty"`
	Comment   string            `json:"comment,omitempty"`
}

// Condition selects rows.
type Condition [3]any

// Is selects rows with a value in a column.
func Is(column string, value any) Condition { return Condition{column, "==", value} }

// Includes selects rows whose column has at least the elements of a value.
func Includes(column string, value any) Condition { return Condition{column, "includes", value} }

// Select returns the operation that reads columns.
func Select(table string, columns []string, where ...Condition) Operation {
	return Operation{Op: "select", Table: table, Columns: columns, Where: conditions(where)}
}

// Insert returns the operation that inserts a row. Other operations of the transaction
// refer to it by Named(name).
func Insert(table, name string, row map[string]any) Operation {
	return Operation{Op: "insert", Table: table, Name: name, Row: row}
}

// Mutate returns the operation that changes a column by its present value: the mutator
// "insert" adds the elements of a value, "delete" removes them, "+=" adds a number.
func Mutate(table, column, mutator string, value any, where ...Condition) Operation {
	return Operation{Op: "mutate", Table: table, Mutations: [][3]any{{column, mutator, value}}, Where: conditions(where)}
}

// Unless returns the operation that ends the transaction with ErrRefused unless exactly the
// rows with these values in a column are selected.
func Unless(table, column string, values []string, where ...Condition) Operation {
	rows := make([]map[string]any, 0, len(values))
	for _, v := range values {
		rows = append(rows, map[string]any{column: v})
	}
	return Operation{Op: "wait", Table: table, Columns: []string{column}, Rows: &rows, Until: "==", Timeout: new(int), Where: conditions(where)}
}

// Await returns the operation that waits until a row of a table has at least a number in a
// column. It ends the transaction with ErrRefused if it waits in vain.
func Await(table, column, number string) Operation {
	timeout := int(awaitTimeout.Milliseconds())
	at := Condition{column, ">=", json.Number(number)}
	return Operation{Op: "wait", Table: table, Columns: []string{column}, Rows: &[]map[string]any{}, Until: "!=", Timeout: &timeout, Where: conditions([]Condition{at})}
}

// Comment returns the operation that describes the transaction in the log of the database.
func Comment(text string) Operation { return Operation{Op: "comment", Comment: text} }

func conditions(where []Condition) *[]Condition {
	all := append([]Condition{}, where...)
	return &all
}

// UUID refers to a row, Named to a row that the transaction inserts.
func UUID(id string) any { return [2]string{"uuid", id} }

// Named refers to a row that the transaction inserts.
func Named(name string) any { return [2]string{"named-uuid", name} }

// Set is the value of a column with several elements.
func Set(elements ...any) any { return [2]any{"set", append([]any{}, elements...)} }

// Map is the value of a column with pairs.
func Map(pairs map[string]string) any {
	list := [][2]string{}
	for _, k := range slices.Sorted(maps.Keys(pairs)) {
		list = append(list, [2]string{k, pairs[k]})
	}
	return [2]any{"map", list}
}

// Result is the result of one operation: the rows of a select, or the number of rows that
// an update or a mutate has changed.
type Result struct {
	Rows  []Row `json:"rows"`
	Count int   `json:"count"`
}

// Row has the columns of a row that were selected.
type Row map[string]Value

// Value is the value of a column. A UUID is an element like any other.
type Value struct {
	Elements []string
	Pairs    map[string]string
}

// Text returns the first element, "" if there is none.
func (v Value) Text() string {
	if len(v.Elements) == 0 {
		return ""
	}
	return v.Elements[0]
}

// UnmarshalJSON decodes a value (RFC 7047, section 5.1).
func (v *Value) UnmarshalJSON(raw []byte) error {
	var decoded any
	if err := json.Unmarshal(raw, &decoded); err != nil {
		return err
	}
	*v = Value{}
	elements := []any{decoded}
	if tag, rest := tagged(decoded); tag == "set" {
		elements = rest
	} else if tag == "map" {
		v.Pairs, elements = make(map[string]string, len(rest)), nil
		for _, r := range rest {
			pair, _ := r.([]any)
			if len(pair) != 2 {
				return fmt.Errorf("pair %v of a map must have a key and a value", r)
			}
			key, keyErr := atom(pair[0])
			value, err := atom(pair[1])
			if err := errors.Join(keyErr, err); err != nil {
				return err
			}
			v.Pairs[key] = value
		}
	}
	for _, e := range elements {
		text, err := atom(e)
		if err != nil {
			return err
		}
		v.Elements = append(v.Elements, text)
	}
	return nil
}

// tagged returns the tag and the elements of a set or a map.
func tagged(decoded any) (tag string, elements []any) {
	list, _ := decoded.([]any)
	if len(list) != 2 {
		return "", nil
	}
	elements, ok := list[1].([]any)
	if !ok {
		return "", nil
	}
	tag, _ = list[0].(string)
	return tag, elements
}

// atom returns the text of a string, number, boolean or UUID.
func atom(decoded any) (string, error) {
	switch a := decoded.(type) {
	case string:
		return a, nil
	case bool:
		return strconv.FormatBool(a), nil
	case float64:
		return strconv.FormatFloat(a, 'f', -1, 64), nil
	case []any:
		if len(a) == 2 && a[0] == "uuid" {
			if id, ok := a[1].(string); ok {
				return id, nil
			}
		}
	}
	return "", fmt.Errorf("element %v must be a string, a number, a boolean or a UUID", decoded)
}

// results decodes the results of a transaction. Errors: ErrRefused with the operation that
// failed, ErrUnavailable if the answer is none of RFC 7047, section 4.1.3.
func results(answer json.RawMessage, ops []Operation) ([]Result, error) {
	var list []*struct {
		Result
		Error   *string `json:"error"`
		Details string  `json:"details"`
	}
	if err := json.Unmarshal(answer, &list); err != nil {
		return nil, fmt.Errorf("%w as RFC 7047 asks: %w", ErrUnavailable, err)
	}
	out := make([]Result, 0, len(ops))
	for n, r := range list {
		if r != nil && r.Error != nil {
			what := "the commit"
			if n < len(ops) {
				what = ops[n].Op + " of " + ops[n].Table
			}
			return nil, fmt.Errorf("%w: %s: %s: %s", ErrRefused, what, *r.Error, r.Details)
		}
		if r != nil && n < len(ops) {
			out = append(out, r.Result)
		}
	}
	if len(out) != len(ops) {
		return nil, fmt.Errorf("%w as RFC 7047 asks: %d operations have %d results", ErrUnavailable, len(ops), len(out))
	}
	return out, nil
}

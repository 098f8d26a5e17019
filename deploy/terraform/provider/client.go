package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	attempts    = 4
	longestWait = 30 * time.Second
	largestBody = 64 << 20
)

// problem is an answer that is not a success.
type problem struct {
	method, path string
	status       int
	detail       string
}

func (p *problem) Error() string {
	return fmt.Sprintf("%s %s was refused with status %d: %s", p.method, p.path, p.status, p.detail)
}

func hasStatus(err error, status int) bool {
	var refusal *problem
	return errors.As(err, &refusal) && refusal.status == status
}

type client struct {
	url, key string
	http     *http.Client
}

func newClient(address, key string) *client {
	// A redirect would send the key to another address.
	refuse := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &client{url: address, key: key, http: &http.Client{Timeout: time.Minute, CheckRedirect: refuse}}
}

// send returns the JSON of the answer, or nil if it has no body. It repeats requests that were answered with
// 429 or 503, because these changed nothing.
func (c *client) send(ctx context.Context, method, path string, body any) (map[string]any, error) {
	var content []byte
	if body != nil {
		var err error
		if content, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	for attempt := 1; ; attempt++ {
		answer, wait, err := c.sendOnce(ctx, method, path, content)
		if wait == 0 || attempt == attempts {
			return answer, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(wait):
		}
	}
}

// sendOnce returns the delay before a repetition as well; 0: the request must not be repeated.
func (c *client) sendOnce(ctx context.Context, method, path string, content []byte) (map[string]any, time.Duration, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.url+path, bytes.NewReader(content))
	if err != nil {
		return nil, 0, err
	}
	request.Header.Set("x-api-key", c.key)
	request.Header.Set("user-agent", "terraform-provider-monodon/"+version)
	if content != nil {
		request.Header.Set("content-type", "application/json")
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, 0, err
	}
	defer response.Body.Close()
	received, err := io.ReadAll(io.LimitReader(response.Body, largestBody))
	if err != nil {
		return nil, 0, err
	}
	answer := map[string]any{}
	decoder := json.NewDecoder(bytes.NewReader(received))
	decoder.UseNumber()
	decoded := decoder.Decode(&answer)
	if response.StatusCode >= 300 {
		refusal := &problem{method, path, response.StatusCode, detailOf(answer, received)}
		return nil, waitOf(response), refusal
	}
	if len(received) > 0 && decoded != nil {
		return nil, 0, fmt.Errorf("%s %s: the answer is not a JSON object: %w", method, path, decoded)
	}
	return answer, 0, nil
}

func waitOf(response *http.Response) time.Duration {
	if response.StatusCode != http.StatusTooManyRequests && response.StatusCode != http.StatusServiceUnavailable {
		return 0
	}
	seconds, err := strconv.Atoi(response.Header.Get("retry-after"))
	if err != nil || seconds < 1 {
		seconds = 1
	}
	return min(time.Duration(seconds)*time.Second, longestWait)
}

// detailOf returns the message of a problem of the management API, or of an error of the Iceberg protocol.
func detailOf(answer map[string]any, received []byte) string {
	if detail, ok := answer["detail"].(string); ok {
		return detail
	}
	if failure, ok := answer["error"].(map[string]any); ok {
		if message, ok := failure["message"].(string); ok {
			return message
		}
	}
	return string(received[:min(len(received), 500)])
}

var delimiters = []string{"$", "|", "~", "^", "\x1f"}

// fill replaces the attributes in a template of a path by encoded values. Lists of names are joined by a
// delimiter that none of them contains.
func fill(template string, query map[string]string, values map[string]any) (string, error) {
	path := template
	parameters := url.Values{}
	for name, value := range values {
		placeholder := "{" + name + "}"
		if !strings.Contains(template, placeholder) {
			continue
		}
		text, isText := value.(string)
		if names, isList := value.([]any); isList {
			delimiter, err := delimiterOf(template, names)
			if err != nil {
				return "", err
			}
			if text = joined(names, delimiter); text == "" {
				text = delimiter
			}
			if strings.HasPrefix(template, "/management/") && delimiter != "$" {
				parameters.Set("delimiter", delimiter)
			}
		} else if !isText || text == "" {
			return "", fmt.Errorf("attribute %s must not be empty", name)
		}
		path = strings.Replace(path, placeholder, segment(text), 1)
	}
	for parameter, attribute := range query {
		parameters.Set(parameter, fmt.Sprint(values[attribute]))
	}
	if len(parameters) > 0 {
		path += "?" + parameters.Encode()
	}
	return path, nil
}

func delimiterOf(template string, names []any) (string, error) {
	candidates := delimiters
	if !strings.HasPrefix(template, "/management/") {
		candidates = delimiters[len(delimiters)-1:] // Iceberg's
		if len(names) == 0 {
			return "", errors.New("the root namespace always exists and cannot be managed")
		}
	}
	all := joined(names, "")
	for _, candidate := range candidates {
		if !strings.Contains(all, candidate) {
			return candidate, nil
		}
	}
	return "", fmt.Errorf("the names %q contain every delimiter", names)
}

func joined(names []any, delimiter string) string {
	texts := make([]string, len(names))
	for i, name := range names {
		texts[i] = fmt.Sprint(name)
	}
	return strings.Join(texts, delimiter)
}

// segment encodes a value as one segment of a path. Segments of dots would lead to another path.
func segment(text string) string {
	if text == "." || text == ".." {
		return strings.ReplaceAll(text, ".", "%2E")
	}
	return url.PathEscape(text)
}

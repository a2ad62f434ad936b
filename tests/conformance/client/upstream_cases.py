"""The ids of the upstream cases, by suite, so that none is forgotten.

From @durable-streams/client-conformance-tests; `EARLIER` are ids of earlier versions and of
branches there.
"""

CASES = {
    "consumer-cache-headers": """
        cache-head-returns-etag cache-read-idempotent cache-offset-deterministic
        cache-immutable-historical-data cache-content-type-preserved cache-uptodate-stable
    """,
    "consumer-error-context": """
        not-found-includes-path not-found-on-append-includes-path invalid-offset-includes-context
        head-not-found-includes-path
    """,
    "consumer-errors": """
        read-nonexistent-stream read-deleted-stream read-invalid-offset read-offset-now-nonexistent
        read-offset-now-nonexistent-longpoll read-offset-now-nonexistent-sse read-future-offset
        longpoll-nonexistent sse-nonexistent
    """,
    "consumer-fault-injection": """
        delay-recovery delay-with-jitter connection-drop-recovery multiple-connection-drops
        method-specific-fault delay-then-error append-with-delay delay-under-timeout
    """,
    "consumer-json-parsing-errors": """
        truncated-json-response corrupted-json-response truncated-json-array
        recovery-after-parse-error
    """,
    "consumer-message-ordering": """
        ordering-sequential-appends ordering-longpoll-preserves-order ordering-sse-preserves-order
        ordering-offset-monotonic ordering-live-new-data ordering-many-messages
    """,
    "consumer-offset-handling": """
        offset-minus-one-start offset-now-skips-historical offset-now-empty-stream
        offset-now-empty-stream-longpoll offset-now-empty-stream-sse offset-now-matches-tail
        offset-now-longpoll-waits offset-now-sse offset-empty-stream offset-at-end
        offset-resume-partial offset-stored-correctly offset-longpoll-resume offset-sse-resume
        offset-multiple-reads-same-offset
    """,
    "consumer-offset": """
        offset-monotonic offset-exact-resumption offset-persists-across-sessions offset-from-head
        offset-zero-start offset-byte-exactness
    """,
    "consumer-auto": """
        auto-catches-up-with-existing-data auto-waits-for-new-data
        auto-returns-immediately-on-existing-data auto-resumes-from-offset auto-empty-stream
        auto-multiple-chunks
    """,
    "consumer-catchup": """
        read-empty-stream read-single-chunk read-multiple-chunks read-from-offset
        read-from-beginning read-preserves-offset read-binary-data read-unicode-data
    """,
    "consumer-longpoll": """
        longpoll-waits-for-data longpoll-returns-immediately-with-data longpoll-timeout
        longpoll-multiple-chunks longpoll-resume-from-offset
    """,
    "consumer-sse-base64": """
        sse-base64-basic sse-base64-data-integrity-simple sse-base64-data-integrity-multiline
        sse-base64-data-integrity-multiple-appends sse-base64-data-integrity-ascii
        sse-base64-data-integrity-json-like sse-base64-empty-payload sse-base64-special-bytes
        sse-base64-large-payload sse-base64-multiple-chunks sse-base64-resume-from-offset
        sse-base64-up-to-date sse-base64-padding-variations sse-base64-all-byte-values
        sse-base64-reconnect-decoding sse-base64-large-payload-4kb sse-base64-rfc4648-1byte
        sse-base64-rfc4648-2byte sse-base64-rfc4648-3byte sse-base64-rfc4648-6byte
        sse-base64-content-type-protobuf sse-base64-content-type-image sse-base64-offset-now
        sse-base64-many-small-messages
    """,
    "consumer-sse": """
        sse-receives-existing-data sse-receives-new-data sse-resumes-from-offset
        sse-up-to-date-signal sse-empty-stream sse-json-empty-stream
        sse-json-receives-new-data-after-empty-catchup sse-binary-data sse-preserves-nel-character
        sse-preserves-line-separator sse-preserves-paragraph-separator
        sse-preserves-all-unicode-separators sse-strips-single-leading-space
    """,
    "consumer-retry-resilience": """
        retry-on-500 retry-on-503 retry-on-429 retry-multiple-failures no-retry-on-404
        no-retry-on-400 append-retry-on-500 retry-exhaustion-fails
    """,
    "consumer-sse-parsing-errors": """
        unknown-sse-event-type malformed-control-event-json empty-control-event-data
        multiple-unknown-events
    """,
    "consumer-streaming-equivalence": """
        equivalence-existing-data equivalence-from-offset equivalence-empty-stream
        equivalence-live-new-data equivalence-sse-live-new-data equivalence-offset-semantics
    """,
    "lifecycle-dynamic-headers": """
        dynamic-header-per-request dynamic-header-on-read dynamic-param-per-request
        token-refresh-simulation
    """,
    "lifecycle-headers": """
        custom-headers-create custom-headers-append custom-headers-read custom-headers-head
        custom-headers-delete content-type-preserved content-type-with-charset
    """,
    "stream-closure": """
        close-empty-stream close-with-content close-with-final-message close-returns-result
        close-idempotent create-closed-stream create-closed-stream-with-body
        create-then-close-with-body append-to-closed-stream-fails read-closed-stream-catchup
        read-closed-stream-empty-eof head-closed-stream long-poll-closed-stream-immediate
        sse-closed-stream-final-event state-caught-up-open state-complete
        state-open-stream-partial-read idempotent-producer-close
        idempotent-producer-close-with-final-message idempotent-producer-detach-does-not-close
        idempotent-producer-close-idempotent idempotent-producer-close-conflict
        atomic-close-dedup-with-producer close-nonexistent-stream read-offset-beyond-closed-tail
        head-closed-stream-returns-tail-offset delete-closed-stream create-closed-with-ttl
        close-with-body-retry-different-body
    """,
    "lifecycle-stream": """
        full-lifecycle connect-existing head-metadata head-empty-stream multiple-streams
        recreate-after-delete
    """,
    "producer-append": """
        append-string append-multiple append-binary append-empty append-large-data append-unicode
        append-with-custom-headers
    """,
    "producer-batching": """
        batch-concurrent-appends batch-preserves-order batch-with-sequences batch-partial-failure
    """,
    "producer-create": """
        create-basic create-with-content-type create-idempotent create-with-ttl
        create-with-custom-headers create-binary-stream
    """,
    "producer-error-context": """
        sequence-conflict-returns-expected-seq stale-epoch-returns-current-epoch
    """,
    "producer-errors": """
        append-to-nonexistent create-then-delete-then-append connect-nonexistent head-nonexistent
        delete-nonexistent delete-idempotent
    """,
    "producer-sequence": """
        seq-basic-ordering seq-conflict-detection seq-skip-numbers seq-same-number-conflict
        seq-large-numbers seq-without-seq
    """,
    "idempotent-json-batching": """
        json-batch-single-item json-batch-multiple-items json-batch-nested-arrays
        json-batch-mixed-types bytes-batch-concatenates client-deduplication-works
    """,
    "idempotent-autoclaim": """
        autoclaim-with-pipelining autoclaim-with-pipelining-json
        autoclaim-recovers-from-stale-epoch autoclaim-recovers-from-403
        autoclaim-batch-recovers-from-403
    """,
    "idempotent-batching": """
        batch-retry-deduplication producer-with-stream-seq duplicate-json-different-payload
    """,
    "idempotent-concurrent-requests": """
        concurrent-batches-all-delivered concurrent-json-batches-all-delivered
    """,
    "idempotent-epoch-management": """
        epoch-upgrade-accepted stale-epoch-rejected epoch-rollback-rejected
        epoch-increase-requires-seq-zero epoch-gap-allowed epoch-zero-after-higher-epoch
        split-brain-fencing large-epoch-numbers sequence-resets-on-epoch-upgrade
    """,
    "idempotent-error-handling": """
        partial-headers-rejected invalid-integer-formats-rejected empty-producer-id-rejected
        failed-append-does-not-advance-producer-state gap-fill-resume
    """,
    "idempotent-multi-producer": """
        multiple-producers-independent producer-scope-per-stream producer-epoch-per-stream
        interleaved-producers-ordering delete-recreate-resets-producer-state producer-id-long
        producer-id-with-special-chars
    """,
    "idempotent-sequence-validation": """
        first-append-accepted sequential-sequences sequence-gap-rejected new-producer-seq-not-zero
        duplicate-returns-204 duplicate-seq-zero-preserves-state duplicate-ignores-different-data
        ordering-preserved-in-stream duplicate-old-sequence
    """,
    "input-validation": """
        retry-options-valid retry-options-negative-max-retries retry-options-zero-initial-delay
        retry-options-negative-initial-delay retry-options-max-less-than-initial
        retry-options-multiplier-less-than-one producer-valid producer-negative-epoch
        producer-zero-max-batch-bytes producer-negative-max-batch-bytes
        producer-zero-max-batch-items producer-negative-max-batch-items
    """,
}

EARLIER = """
    append-all-byte-values append-binary-x-binary-content-type append-high-bytes-single
    append-if-match-closed-stream append-if-match-nonexistent append-non-utf8-bytes-batched
    append-non-utf8-bytes-single append-protobuf-like-data
    append-replacement-char-should-not-appear append-with-connection-drop
    append-with-matching-if-match append-with-stale-if-match append-with-wildcard-if-match
    catchup-read-after-epoch-transition concurrent-writers-conflict duplicate-different-payload
    json-charset-parameter json-primitive-boolean-null json-primitive-number json-primitive-string
    longpoll-receives-data-after-epoch-transition
    missing-cursor-on-closed-ok missing-cursor-on-live-fatal missing-offset-header-fatal
    offset-now-longpoll plus-json-case-insensitive plus-xml-not-json-mode
    producer-id-empty-rejected producer-id-with-special-characters retry-after-412
    sequence-continues-independently-per-epoch sse-base64-decodes-binary
    sse-base64-decodes-full-byte-range sse-base64-empty-stream sse-base64-multiline-handling
    sse-base64-multiple-appends sse-base64-preserves-control-events
    sse-receives-data-after-epoch-transition sse-receives-data-after-multiple-epoch-transitions
    text-json-not-json-mode
"""

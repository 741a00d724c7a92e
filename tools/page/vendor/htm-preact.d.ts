export * from "preact";
export * from "preact/hooks";
/** Only its name: templates are checked as JSX. */
export declare const html: unknown;
